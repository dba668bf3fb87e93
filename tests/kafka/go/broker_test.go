// Package kafka_test tests the Kafka listener with franz-go, a client with its own implementation of the protocol.
package kafka_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	start    = 10 * time.Second
	drain    = 15 * time.Second
	deadline = 30 * time.Second
)

// The address of the broker's Kafka listener: MAINSTEM_KAFKA, or that of a broker started here from the binary
// MAINSTEM_BIN or the one that cargo built.
var bootstrap string

func TestMain(m *testing.M) {
	bootstrap = os.Getenv("MAINSTEM_KAFKA")
	if bootstrap != "" {
		os.Exit(m.Run())
	}
	stop, err := startBroker()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

func binary() (string, error) {
	if named := os.Getenv("MAINSTEM_BIN"); named != "" {
		return named, nil
	}
	for _, profile := range []string{"release", "debug"} {
		built := "../../../target/" + profile + "/mainstem"
		if _, err := os.Stat(built); err == nil {
			return built, nil
		}
	}
	return "", errors.New("no mainstem binary: build one, or name it in MAINSTEM_BIN")
}

// Starts the binary and waits until it accepts connections. SIGTERM drains it, and it must then exit with status 0.
func startBroker() (stop func() error, err error) {
	path, err := binary()
	if err != nil {
		return nil, err
	}
	data, err := os.MkdirTemp("", "mainstem-test-")
	if err != nil {
		return nil, err
	}
	free := "127.0.0.1:0"
	command := exec.Command(path, "--listen", free, "--kafka-listen", free, "--http-listen", free, "--data", data,
		"--set", "kafka.group_consumer_heartbeat_interval_ms=200")
	command.Stderr = os.Stderr
	// The broker ends with this process, however that ends.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	ready := make(chan string, 1)
	go func() {
		listening := regexp.MustCompile(`kafka listening on (\S+:\d+)$`)
		// Reads to the end, so that the broker never blocks on a full pipe.
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if found := listening.FindStringSubmatch(lines.Text()); found != nil {
				ready <- found[1]
			}
		}
	}()
	select {
	case bootstrap = <-ready:
	case <-time.After(start):
		_ = command.Process.Kill()
		return nil, fmt.Errorf("the broker did not say within %v where it listens", start)
	}
	return func() error {
		defer os.RemoveAll(data)
		if err := command.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		timer := time.AfterFunc(drain, func() { _ = command.Process.Kill() })
		defer timer.Stop()
		if err := command.Wait(); err != nil {
			return fmt.Errorf("the broker after SIGTERM: %w", err)
		}
		return nil
	}, nil
}

// A name that no other test uses, for a topic, a group or a client.
func unique() string { return "t-" + rand.Text() }

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	return ctx
}

func newClient(t *testing.T, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	options = append([]kgo.Opt{
		kgo.SeedBrokers(bootstrap), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(500 * time.Millisecond),
		kgo.HeartbeatInterval(300 * time.Millisecond), kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.MetadataMaxAge(time.Second), kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}, options...)
	client, err := kgo.NewClient(options...)
	check(t, err)
	t.Cleanup(client.Close)
	return client
}

func newAdmin(t *testing.T) *kadm.Client {
	t.Helper()
	return kadm.NewClient(newClient(t))
}

func newTopic(t *testing.T, partitions int32) string {
	t.Helper()
	topic := unique()
	made, err := newAdmin(t).CreateTopic(within(t), partitions, 1, nil, topic)
	check(t, err)
	check(t, made.Err)
	return topic
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
