package main

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const natsStream = "load"

// natsClient is a connection to the server that leads the stream. A batch is as many messages, awaited together.
type natsClient struct {
	stream jetstream.JetStream
	work   Work
}

func connectNATS(servers map[string]string, work Work) ([]Client, error) {
	leader, err := newNATSStream(servers)
	if err != nil {
		return nil, err
	}
	var clients []Client
	for range work.Clients {
		connection, err := nats.Connect("nats://" + leader)
		if err != nil {
			return nil, err
		}
		stream, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(work.Depth*work.Batch+1))
		if err != nil {
			return nil, err
		}
		clients = append(clients, &natsClient{stream, work})
	}
	return clients, nil
}

// newNATSStream replaces the stream of an earlier run, and returns the address of its leader.
func newNATSStream(servers map[string]string) (string, error) {
	var urls []string
	for _, address := range servers {
		urls = append(urls, "nats://"+address)
	}
	connection, err := nats.Connect(urls[0])
	if err != nil {
		return "", err
	}
	defer connection.Close()
	js, err := jetstream.New(connection)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	_ = js.DeleteStream(ctx, natsStream)
	for {
		stream, err := js.CreateStream(ctx, jetstream.StreamConfig{
			Name: natsStream, Subjects: []string{natsStream}, Storage: jetstream.FileStorage, Replicas: len(servers),
		})
		if err == nil {
			return servers[stream.CachedInfo().Cluster.Leader], nil
		}
		if ctx.Err() != nil {
			return "", err
		}
		time.Sleep(100 * time.Millisecond) // The servers have yet to elect who creates streams.
	}
}

// Put publishes a batch. A client that has one message in flight uses the call made for that.
func (c *natsClient) Put() error {
	if c.work.Depth*c.work.Batch == 1 {
		_, err := c.stream.Publish(context.Background(), natsStream, c.work.Value)
		return err
	}
	published := make([]jetstream.PubAckFuture, c.work.Batch)
	for at := range published {
		future, err := c.stream.PublishAsync(natsStream, c.work.Value)
		if err != nil {
			return err
		}
		published[at] = future
	}
	for _, future := range published {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			return err
		}
	}
	return nil
}
