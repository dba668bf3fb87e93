package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func numbers(count int, prefix string) []string {
	values := make([]string, count)
	for number := range values {
		values[number] = fmt.Sprint(prefix, number)
	}
	return values
}

// Produces values to a partition in order and waits for all acknowledgements.
func produce(t *testing.T, client *kgo.Client, topic string, partition int32, values []string) {
	t.Helper()
	records := make([]*kgo.Record, len(values))
	for i, value := range values {
		records[i] = &kgo.Record{Topic: topic, Partition: partition, Value: []byte(value)}
	}
	check(t, client.ProduceSync(within(t), records...).FirstErr())
}

// The next `count` records.
func take(t *testing.T, client *kgo.Client, count int) []*kgo.Record {
	t.Helper()
	ctx := within(t)
	var got []*kgo.Record
	for len(got) < count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("%d of %d records: %v", len(got), count, err)
		}
		got = append(got, fetches.Records()...)
	}
	return got
}

func values(records []*kgo.Record) []string {
	values := make([]string, len(records))
	for i, record := range records {
		values[i] = string(record.Value)
	}
	return values
}

func equal(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("got %d values, want %d: %.200q, want %.200q", len(got), len(want), got, want)
	}
}

func TestEveryCompressionKeepsTheOrder(t *testing.T) {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	for name, codec := range codecs {
		t.Run(name, func(t *testing.T) {
			topic := newTopic(t, 1)
			producer := newClient(t, kgo.ProducerBatchCompression(codec))
			produce(t, producer, topic, 0, numbers(2000, "compressible compressible "))
			records := take(t, newClient(t, kgo.ConsumeTopics(topic)), 2000)
			equal(t, values(records), numbers(2000, "compressible compressible "))
			if last := records[1999].Offset; last != 1999 {
				t.Fatalf("the last one is at %d", last)
			}
		})
	}
}

func TestEachAcknowledgement(t *testing.T) {
	for name, acks := range map[string]kgo.Acks{"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks()} {
		t.Run(name, func(t *testing.T) {
			topic := newTopic(t, 1)
			options := []kgo.Opt{kgo.RequiredAcks(acks)}
			if name != "all" {
				options = append(options, kgo.DisableIdempotentWrite())
			}
			produce(t, newClient(t, options...), topic, 0, numbers(100, ""))
			equal(t, values(take(t, newClient(t, kgo.ConsumeTopics(topic)), 100)), numbers(100, ""))
		})
	}
}

func TestKeyHeadersAndTimestamp(t *testing.T) {
	topic := newTopic(t, 1)
	sent := &kgo.Record{
		Topic: topic, Key: []byte("key"), Value: []byte("value"), Timestamp: time.UnixMilli(1_600_000_000_123),
		Headers: []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "b"}, {Key: "a", Value: []byte("2")}},
	}
	check(t, newClient(t).ProduceSync(within(t), sent, &kgo.Record{Topic: topic, Key: []byte("gone")}).FirstErr())
	got := take(t, newClient(t, kgo.ConsumeTopics(topic)), 2)
	first := got[0]
	headers := slices.EqualFunc(first.Headers, sent.Headers, func(a, b kgo.RecordHeader) bool {
		return a.Key == b.Key && string(a.Value) == string(b.Value) && (a.Value == nil) == (b.Value == nil)
	})
	if string(first.Key) != "key" || !first.Timestamp.Equal(sent.Timestamp) || !headers {
		t.Fatalf("got %+v", first)
	}
	if got[1].Value != nil {
		t.Fatalf("a value of null came as %q", got[1].Value)
	}
}

// A group member that reads until it leaves, and commits its position.
type member struct {
	client *kgo.Client
	cancel context.CancelFunc
	over   sync.WaitGroup
	mutex  sync.Mutex
	owned  int
	seen   []string
}

func join(t *testing.T, group, topic string, options ...kgo.Opt) *member {
	t.Helper()
	joined := &member{}
	change := func(by int) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(ctx context.Context, client *kgo.Client, changed map[string][]int32) {
			if by < 0 {
				_ = client.CommitUncommittedOffsets(ctx)
			}
			joined.mutex.Lock()
			defer joined.mutex.Unlock()
			joined.owned += by * len(changed[topic])
		}
	}
	options = append(options, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(), kgo.OnPartitionsAssigned(change(1)), kgo.OnPartitionsRevoked(change(-1)),
		kgo.OnPartitionsLost(change(-1)))
	joined.client = newClient(t, options...)
	ctx, cancel := context.WithCancel(context.Background())
	joined.cancel = cancel
	joined.over.Add(1)
	go func() {
		defer joined.over.Done()
		for ctx.Err() == nil {
			fetches := joined.client.PollFetches(ctx)
			joined.mutex.Lock()
			joined.seen = append(joined.seen, values(fetches.Records())...)
			joined.mutex.Unlock()
			joined.client.AllowRebalance()
		}
	}()
	t.Cleanup(joined.leave)
	return joined
}

func (m *member) leave() {
	m.cancel()
	m.over.Wait()
	m.client.CloseAllowingRebalance()
}

func (m *member) state() (owned int, seen []string) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.owned, slices.Clone(m.seen)
}

func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", deadline, what)
		}
	}
}

func TestNoRecordIsMissedOrRepeatedWhileMembersJoinAndLeave(t *testing.T) {
	for _, balancer := range []kgo.GroupBalancer{
		kgo.RangeBalancer(), kgo.RoundRobinBalancer(), kgo.StickyBalancer(), kgo.CooperativeStickyBalancer(),
	} {
		t.Run(balancer.ProtocolName(), func(t *testing.T) {
			joinAndLeave(t, unique(), kgo.Balancers(balancer))
		})
	}
}

// KIP-848. The client uses the consumer protocol only if its context has this key; it translates the balancer.
func TestNoRecordIsMissedOrRepeatedInTheConsumerProtocol(t *testing.T) {
	ctx := context.WithValue(context.Background(), "opt_in_kafka_next_gen_balancer_beta", true)
	for assignor, balancer := range map[string]kgo.GroupBalancer{
		"range": kgo.RangeBalancer(), "uniform": kgo.StickyBalancer(),
	} {
		t.Run(assignor, func(t *testing.T) {
			group := unique()
			joinAndLeave(t, group, kgo.Balancers(balancer), kgo.WithContext(ctx))
			described, err := newAdmin(t).DescribeConsumerGroups(within(t), group)
			check(t, err)
			check(t, described.Error())
			if got := described[group]; got.AssignorName != assignor || len(got.Members) != 1 {
				t.Fatalf("described: %+v", got)
			}
		})
	}
}

// Two members join a group, and the first one leaves it.
func joinAndLeave(t *testing.T, group string, options ...kgo.Opt) {
	t.Helper()
	topic := newTopic(t, 4)
	producer := newClient(t)
	var sent []string
	send := func(prefix string) {
		for partition := range int32(4) {
			batch := numbers(50, fmt.Sprint(prefix, partition, "-"))
			produce(t, producer, topic, partition, batch)
			sent = append(sent, batch...)
		}
	}
	owns := func(m *member, count int) func() bool {
		return func() bool { owned, _ := m.state(); return owned == count }
	}
	first := join(t, group, topic, options...)
	until(t, "all partitions", owns(first, 4))
	send("a")
	second := join(t, group, topic, options...)
	until(t, "half of them for the first", owns(first, 2))
	until(t, "half of them for the second", owns(second, 2))
	send("b")
	first.leave()
	until(t, "what the other one had", owns(second, 4))
	send("c")
	seen := func() []string {
		_, ones := first.state()
		_, twos := second.state()
		return append(ones, twos...)
	}
	until(t, "all records", func() bool { return len(seen()) >= len(sent) })
	got := seen()
	slices.Sort(got)
	slices.Sort(sent)
	equal(t, got, sent)
}

func TestTransactions(t *testing.T) {
	topic, name := newTopic(t, 1), unique()
	producer := newClient(t, kgo.TransactionalID(name), kgo.DefaultProduceTopic(topic))
	var want []string
	for number := range 6 {
		check(t, producer.BeginTransaction())
		batch := numbers(20, fmt.Sprint(number, "-"))
		produce(t, producer, topic, 0, batch)
		commit := kgo.TransactionEndTry(number%2 == 0)
		if commit {
			want = append(want, batch...)
		}
		check(t, producer.EndTransaction(within(t), commit))
	}
	produce(t, newClient(t), topic, 0, []string{"end"})
	want = append(want, "end")
	committed := newClient(t, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	equal(t, values(take(t, committed, len(want))), want)
	if all := take(t, newClient(t, kgo.ConsumeTopics(topic)), 121); len(all) != 121 {
		t.Fatalf("%d records", len(all))
	}
}

func TestASuccessorFencesItsPredecessor(t *testing.T) {
	topic, name := newTopic(t, 1), unique()
	first := newClient(t, kgo.TransactionalID(name))
	check(t, first.BeginTransaction())
	produce(t, first, topic, 0, []string{"left"})
	var second *kgo.Client
	// The client itself does not wait until the transaction of the first producer is aborted.
	until(t, "the end of what the first has left", func() bool {
		second = newClient(t, kgo.TransactionalID(name))
		_, _, err := second.ProducerID(within(t))
		return !errors.Is(err, kerr.ConcurrentTransactions)
	})
	check(t, second.BeginTransaction())
	produce(t, second, topic, 0, []string{"done"})
	check(t, second.EndTransaction(within(t), kgo.TryCommit))
	err := first.EndTransaction(within(t), kgo.TryCommit)
	if !errors.Is(err, kerr.ProducerFenced) && !errors.Is(err, kerr.InvalidProducerEpoch) {
		t.Fatalf("the end of the first: %v", err)
	}
	committed := newClient(t, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	equal(t, values(take(t, committed, 1)), []string{"done"})
}

// Copies a topic in transactions that include the group's offsets, with franz-go's GroupTransactSession.
func TestACopyIsExactAmongAborts(t *testing.T) {
	source, sink, group := newTopic(t, 1), newTopic(t, 1), unique()
	produce(t, newClient(t), source, 0, numbers(200, ""))
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(bootstrap), kgo.TransactionalID(unique()),
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(source), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets())
	check(t, err)
	t.Cleanup(session.Close)
	ctx := within(t)
	for copied, round := 0, 0; copied < 200; round++ {
		fetches := session.PollRecords(ctx, 40)
		check(t, fetches.Err())
		check(t, session.Begin())
		for _, record := range fetches.Records() {
			session.Produce(ctx, &kgo.Record{Topic: sink, Value: record.Value}, nil)
		}
		committed, err := session.End(ctx, kgo.TransactionEndTry(round%2 == 1))
		check(t, err)
		if committed {
			copied += fetches.NumRecords()
		}
	}
	committed := newClient(t, kgo.ConsumeTopics(sink), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	equal(t, values(take(t, committed, 200)), numbers(200, ""))
}

func TestOffsetsByTimeAndAtTheEnds(t *testing.T) {
	topic, admin := newTopic(t, 1), newAdmin(t)
	for number := range int64(5) {
		record := &kgo.Record{Topic: topic, Timestamp: time.UnixMilli(1_700_000_000_000 + 1000*number)}
		check(t, newClient(t).ProduceSync(within(t), record).FirstErr())
	}
	offset := func(listed kadm.ListedOffsets, err error) int64 {
		t.Helper()
		check(t, err)
		check(t, listed.Error())
		found, _ := listed.Lookup(topic, 0)
		return found.Offset
	}
	ctx := within(t)
	got := []int64{
		offset(admin.ListStartOffsets(ctx, topic)), offset(admin.ListEndOffsets(ctx, topic)),
		offset(admin.ListOffsetsAfterMilli(ctx, 1_700_000_002_500, topic)), offset(admin.ListMaxTimestampOffsets(ctx, topic)),
	}
	if want := []int64{0, 5, 3, 4}; !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestAdministration(t *testing.T) {
	ctx, admin, topic, group := within(t), newAdmin(t), newTopic(t, 2), unique()
	brokers, err := admin.ListBrokers(ctx)
	check(t, err)
	if len(brokers) != 1 || fmt.Sprintf("%s:%d", brokers[0].Host, brokers[0].Port) != bootstrap {
		t.Fatalf("brokers: %+v", brokers)
	}
	_, err = admin.CreateTopic(ctx, 1, 1, nil, topic)
	if !errors.Is(err, kerr.TopicAlreadyExists) {
		t.Fatalf("made twice: %v", err)
	}
	updated, err := admin.UpdatePartitions(ctx, 3, topic)
	check(t, err)
	check(t, updated.Error())
	value := "1234"
	altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "max.message.bytes", Value: &value}}, topic)
	check(t, err)
	check(t, altered[0].Err)
	until(t, "the new limit", func() bool {
		configs, err := admin.DescribeTopicConfigs(ctx, topic)
		check(t, err)
		at := slices.IndexFunc(configs[0].Configs, func(c kadm.Config) bool { return c.Key == "max.message.bytes" })
		return *configs[0].Configs[at].Value == value
	})
	produce(t, newClient(t), topic, 0, numbers(10, ""))
	consumer := newClient(t, kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group))
	take(t, consumer, 10)
	consumer.Close()
	lags, err := admin.Lag(ctx, group)
	check(t, err)
	check(t, lags.Error())
	committed := kadm.Offsets{}
	committed.AddOffset(topic, 0, 4, -1)
	check(t, admin.CommitAllOffsets(ctx, group, committed))
	fetched, err := admin.FetchOffsets(ctx, group)
	check(t, err)
	if found, _ := fetched.Lookup(topic, 0); found.At != 4 {
		t.Fatalf("committed: %+v", fetched)
	}
	deleted, err := admin.DeleteRecords(ctx, committed)
	check(t, err)
	check(t, deleted.Error())
	_, err = admin.DeleteGroup(ctx, group)
	check(t, err)
	_, err = admin.DeleteTopic(ctx, topic)
	check(t, err)
	topics, err := admin.ListTopics(ctx)
	check(t, err)
	if topics.Has(topic) {
		t.Fatal("the topic is still there")
	}
}
