// Runs the rows of `cargo xtask bench-bus` with the inline client of mochi-mqtt: one line of JSON per row.
//
// With the argument "allocations" it counts allocations instead of time.
package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
)

const (
	topic     = "plant/7/press/temp"
	receivers = 1000
	slices    = 7
	slice     = 40 * time.Millisecond
)

var counting = len(os.Args) > 1 && os.Args[1] == "allocations"

func newServer() *mqtt.Server {
	return mqtt.New(&mqtt.Options{InlineClient: true, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func countInto(server *mqtt.Server, filter string, id int, count *uint64) {
	must(server.Subscribe(filter, id, func(*mqtt.Client, packets.Subscription, packets.Packet) { *count++ }))
}

// measure prints the cost of an operation; work performs ops operations per call.
func measure(row string, ops float64, work func()) {
	if counting {
		work()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		work()
		runtime.ReadMemStats(&after)
		fmt.Printf(`{"row":%q,"contender":"mochi","allocations":%.3f}`+"\n", row, float64(after.Mallocs-before.Mallocs)/ops)
		return
	}
	report(row, best(ops, work), 1)
}

// threadCPU returns the CPU time of this thread so far, without garbage collection on other threads.
func threadCPU() time.Duration {
	var usage syscall.Rusage
	const self = 1 // RUSAGE_THREAD
	must(syscall.Getrusage(self, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// best returns the CPU nanoseconds per operation of the best slice.
func best(ops float64, work func()) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	calls, found := 1, 0.0
	for taken := 0; taken < slices; {
		start := threadCPU()
		for range calls {
			work()
		}
		took := threadCPU() - start
		if took < slice/2 {
			calls *= 2
			continue
		}
		taken++
		ns := float64(took.Nanoseconds()) / float64(calls) / ops
		if found == 0 || ns < found {
			found = ns
		}
	}
	return found
}

func report(row string, ns float64, threads float64) {
	fmt.Printf(`{"row":%q,"contender":"mochi","ns":%.3f,"per_s":%.0f}`+"\n", row, ns, threads*1e9/ns)
}

func deviceTopic(device int) string {
	return fmt.Sprintf("site/%d/line/%d/device/%07d/state", device%50, device%1000, device)
}

func publish() {
	server := newServer()
	counts := make([]uint64, 5)
	for id := range counts {
		countInto(server, "plant/+/press/temp", id+1, &counts[id])
	}
	payload := []byte("12345678")
	sent := uint64(0)
	measure("publish-5", 1000, func() {
		for range 1000 {
			must(server.Publish(topic, payload, false, 0))
		}
		sent += 1000
	})
	for _, count := range counts {
		if count != sent {
			panic("lost")
		}
	}
}

func fanOut() {
	server := newServer()
	counts := make([]uint64, receivers)
	for id := range counts {
		countInto(server, topic, id+1, &counts[id])
	}
	payload := []byte("12345678")
	sent := uint64(0)
	measure("fan-out", 16*receivers, func() {
		for range 16 {
			must(server.Publish(topic, payload, false, 0))
		}
		sent += 16
	})
	for _, count := range counts {
		if count != sent {
			panic("lost")
		}
	}
}

func concurrent() {
	if counting {
		return
	}
	server := newServer()
	payload := []byte("12345678")
	for _, threads := range []int{1, 2} {
		results := make([]float64, threads)
		var running sync.WaitGroup
		for thread := range threads {
			running.Add(1)
			go func() {
				defer running.Done()
				own := fmt.Sprintf("plant/%d/temp", thread)
				var count uint64
				countInto(server, own, threads*10+thread, &count)
				results[thread] = best(1000, func() {
					for range 1000 {
						must(server.Publish(own, payload, false, 0))
					}
				})
			}()
		}
		running.Wait()
		sum := 0.0
		for _, ns := range results {
			sum += ns
		}
		report(fmt.Sprintf("concurrent-%d", threads), sum/float64(threads), float64(threads))
	}
}

func subscribe() {
	server := newServer()
	var count uint64
	for number := range 100_000 {
		countInto(server, deviceTopic(number), 1, &count)
	}
	for _, row := range []struct{ name, filter string }{
		{"subscribe-exact", "plant/7/temp"}, {"subscribe-wildcard", "plant/+/temp"},
	} {
		measure(row.name, 1000, func() {
			for range 1000 {
				countInto(server, row.filter, 1, &count)
				must(server.Unsubscribe(row.filter, 1))
			}
		})
	}
}

// matching matches the same 16 names repeatedly against a million filters.
func matching() {
	const filters = 1_000_000
	names := make([]string, 16)
	for number := range names {
		names[number] = deviceTopic(number*filters/16 + 777)
	}
	match := func(row string, filter func(int) string) {
		index := mqtt.NewTopicsIndex()
		for number := range filters {
			index.InlineSubscribe(mqtt.InlineSubscription{Subscription: packets.Subscription{Filter: filter(number), Identifier: 1}})
		}
		measure(row, 16, func() {
			for _, name := range names {
				index.Subscribers(name)
			}
		})
	}
	match("match-exact", deviceTopic)
	match("match-wildcard", func(number int) string {
		switch {
		case number%1000 == 0:
			return fmt.Sprintf("site/%d/line/%d/#", number/1000%50, number/1000)
		case number%1000 == 1:
			return fmt.Sprintf("+/%d/line/%d/device/+/state", number/1000%50, number/1000)
		case number%1000 < 100:
			return fmt.Sprintf("site/%d/line/%d/device/%07d/+", number%50, number%1000, number)
		default:
			return deviceTopic(number)
		}
	})
}

func main() {
	publish()
	fanOut()
	concurrent()
	subscribe()
	matching()
}
