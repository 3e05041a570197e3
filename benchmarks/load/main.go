// One load for four systems: values are put from a number of clients, and every wait is timed by the same code.
//
//	load -system etcd -servers n1=HOST:PORT,n2=HOST:PORT,n3=HOST:PORT -clients 8 -depth 16 -batch 100 -bytes 16
//
// It connects, prints "ready", and then runs a slice for each line that it reads: it warms up, prints "begin",
// measures, prints "end", waits until everything is answered, and prints its figures as one line of JSON. So several
// processes that stay connected can take turns, and the caller can sample processor time at "begin" and "end".
package main

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// version is set by the build: the checksum of the sources.
var version = "unknown"

const (
	longest = 10 // Lengths of a slice that gets too few answers.
	pause   = 10 * time.Millisecond
)

// Work is what every client does: depth requests in flight, each of batch values.
type Work struct {
	Clients, Depth, Batch int
	Value                 []byte
}

// Client is one connection. Several goroutines may call Put at the same time.
type Client interface {
	// Put stores a batch, and returns once the system says that it is durable on a majority.
	Put() error
}

// Connect opens the clients of a work, to the leader where the system lets a client choose.
type Connect func(servers map[string]string, work Work) ([]Client, error)

var systems = map[string]Connect{
	"quire": connectQuire,
	"etcd":  connectEtcd,
	"NATS":  connectNATS,
	"Kafka": connectKafka,
}

// Figures are those of one slice; waits are of whole batches.
type Figures struct {
	Commands int     `json:"commands"`
	Seconds  float64 `json:"seconds"`
	P50Ms    float64 `json:"p50_ms"`
	P99Ms    float64 `json:"p99_ms"`
}

func main() {
	system := flag.String("system", "quire", "quire, etcd, NATS or Kafka")
	named := flag.String("servers", "", "n1=HOST:PORT,...")
	clients := flag.Int("clients", 1, "connections")
	depth := flag.Int("depth", 1, "requests in flight on each connection")
	batch := flag.Int("batch", 1, "values in a request")
	size := flag.Int("bytes", 16, "bytes of a value")
	warm := flag.Duration("warm", 200*time.Millisecond, "warm-up of a slice")
	length := flag.Duration("slice", time.Second, "length of a slice")
	watching := flag.Bool("watch", false, "print each answer, and who leads; see watch")
	printVersion := flag.Bool("version", false, "print the version and exit")
	flag.Parse()
	if *printVersion {
		fmt.Println("load version", version)
		return
	}
	if *watching {
		watch(*system, parseServers(*named))
	}
	work := Work{*clients, *depth, *batch, make([]byte, *size)}
	_, _ = rand.Read(work.Value) // It cannot fail.
	connect, known := systems[*system]
	if !known {
		fail(fmt.Errorf("no such system: %s", *system))
	}
	connected, err := connect(parseServers(*named), work)
	if err != nil {
		fail(err)
	}
	putOnce(connected)
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		line, err := json.Marshal(runSlice(connected, work, *warm, *length))
		if err != nil {
			fail(err)
		}
		fmt.Println(string(line))
	}
}

func parseServers(named string) map[string]string {
	servers := map[string]string{}
	for _, pair := range strings.Split(named, ",") {
		name, address, _ := strings.Cut(pair, "=")
		servers[name] = address
	}
	return servers
}

// putOnce lets each client do what it puts off until its first request.
func putOnce(clients []Client) {
	var running sync.WaitGroup
	for _, client := range clients {
		running.Go(func() {
			if err := client.Put(); err != nil {
				fail(err)
			}
		})
	}
	running.Wait()
}

// runSlice loads the system for the warm-up and the slice, and counts what was answered within the slice. A slice is
// longer than asked for if fewer answers came than requests are in flight: some systems answer them all at once.
func runSlice(clients []Client, work Work, warm, length time.Duration) Figures {
	var counting, stopping atomic.Bool
	var answered atomic.Int64
	var running sync.WaitGroup
	waits := make([][]time.Duration, len(clients)*work.Depth)
	for number := range waits {
		client := clients[number%len(clients)]
		running.Go(func() {
			for !stopping.Load() {
				began := time.Now()
				if err := client.Put(); err != nil {
					fail(err)
				}
				if counting.Load() {
					waits[number] = append(waits[number], time.Since(began))
					answered.Add(1)
				}
			}
		})
	}
	time.Sleep(warm)
	fmt.Println("begin")
	began := time.Now()
	counting.Store(true)
	time.Sleep(length)
	for int(answered.Load()) < len(waits) && time.Since(began) < longest*length {
		time.Sleep(pause)
	}
	counting.Store(false)
	seconds := time.Since(began).Seconds()
	fmt.Println("end")
	stopping.Store(true)
	running.Wait()
	all := slices.Concat(waits...)
	slices.Sort(all)
	return Figures{len(all) * work.Batch, seconds, percentile(all, 0.5), percentile(all, 0.99)}
}

// percentile of sorted waits, in milliseconds; 0 if there are none.
func percentile(waits []time.Duration, share float64) float64 {
	if len(waits) == 0 {
		return 0
	}
	at := min(len(waits)-1, int(share*float64(len(waits))))
	return float64(waits[at]) / float64(time.Millisecond)
}

// keyOf names the place of a value: all systems with keys use the same thousand, in turn.
func keyOf(number int) string { return fmt.Sprintf("key-%04d", number%1000) }

func fail(err error) {
	fmt.Fprintln(os.Stderr, "load:", err)
	os.Exit(1)
}
