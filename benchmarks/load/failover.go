package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const (
	putTimeout  = 5 * time.Second // The default of etcdctl, and of NATS's JetStream client.
	lookTimeout = 250 * time.Millisecond
	between     = 2 * time.Millisecond
)

// Watched is a client with default settings that knows all servers, and what each server says.
type Watched interface {
	Put(ctx context.Context) error
	// Leader is who leads, as this server says.
	Leader(ctx context.Context, server string) (string, error)
}

var watched = map[string]func(servers map[string]string) (Watched, error){"etcd": watchEtcd, "NATS": watchNATS}

// watch puts one value after another until stdin is closed, and prints "put" for each answer, and "SERVER LEADER" when
// a server names another leader than before, or none ("-").
func watch(system string, servers map[string]string) {
	connect, known := watched[system]
	if !known {
		fail(fmt.Errorf("%s cannot be watched", system))
	}
	client, err := connect(servers)
	if err != nil {
		fail(err)
	}
	lines := make(chan string)
	for server := range servers {
		go func() {
			for last := ""; ; time.Sleep(between) {
				ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
				leader, err := client.Leader(ctx, server)
				cancel()
				if err != nil || leader == "" {
					leader = "-"
				}
				if leader != last {
					lines <- server + " " + leader
					last = leader
				}
			}
		}()
	}
	go func() {
		for ; ; time.Sleep(between) {
			ctx, cancel := context.WithTimeout(context.Background(), putTimeout)
			if client.Put(ctx) == nil {
				lines <- "put"
			}
			cancel()
		}
	}()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for out := bufio.NewWriter(os.Stdout); ; {
		fmt.Fprintln(out, <-lines)
		out.Flush()
	}
}

type watchedEtcd struct {
	client  *clientv3.Client
	servers map[string]string
	each    map[string]*clientv3.Client
	names   map[uint64]string
}

func watchEtcd(servers map[string]string) (Watched, error) {
	w := &watchedEtcd{servers: servers, each: map[string]*clientv3.Client{}, names: map[uint64]string{}}
	var all []string
	for name, address := range servers {
		all = append(all, address)
		client, err := etcdDial(address)
		if err != nil {
			return nil, err
		}
		w.each[name] = client
		status, err := client.Status(context.Background(), address)
		if err != nil {
			return nil, err
		}
		w.names[status.Header.MemberId] = name
	}
	var err error
	w.client, err = clientv3.New(clientv3.Config{Endpoints: all, Logger: zap.NewNop()})
	return w, err
}

func (w *watchedEtcd) Put(ctx context.Context) error {
	_, err := w.client.Put(ctx, keyOf(0), "value")
	return err
}

func (w *watchedEtcd) Leader(ctx context.Context, server string) (string, error) {
	status, err := w.each[server].Status(ctx, w.servers[server])
	if err != nil {
		return "", err
	}
	return w.names[status.Leader], nil
}

type watchedNATS struct {
	client jetstream.JetStream
	each   map[string]jetstream.JetStream
}

func watchNATS(servers map[string]string) (Watched, error) {
	if _, err := newNATSStream(servers); err != nil {
		return nil, err
	}
	w := &watchedNATS{each: map[string]jetstream.JetStream{}}
	all := ""
	for name, address := range servers {
		all += ",nats://" + address
		connection, err := nats.Connect("nats://"+address, nats.IgnoreDiscoveredServers(), nats.MaxReconnects(-1))
		if err != nil {
			return nil, err
		}
		if w.each[name], err = jetstream.New(connection); err != nil {
			return nil, err
		}
	}
	connection, err := nats.Connect(all[1:])
	if err != nil {
		return nil, err
	}
	w.client, err = jetstream.New(connection)
	return w, err
}

func (w *watchedNATS) Put(ctx context.Context) error {
	_, err := w.client.Publish(ctx, natsStream, []byte("value"))
	return err
}

func (w *watchedNATS) Leader(ctx context.Context, server string) (string, error) {
	stream, err := w.each[server].Stream(ctx, natsStream)
	if err != nil {
		return "", err
	}
	return stream.CachedInfo().Cluster.Leader, nil
}
