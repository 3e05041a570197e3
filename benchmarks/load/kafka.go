package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// kafkaClient is a producer of one partition. A batch is as many records, produced together.
type kafkaClient struct {
	producer *kgo.Client
	topic    string
	work     Work
}

func connectKafka(servers map[string]string, work Work) ([]Client, error) {
	topic, err := newKafkaTopic(servers)
	if err != nil {
		return nil, err
	}
	var clients []Client
	for range work.Clients {
		producer, err := kafkaDial(servers, kgo.DefaultProduceTopic(topic))
		if err != nil {
			return nil, err
		}
		clients = append(clients, &kafkaClient{producer, topic, work})
	}
	return clients, nil
}

// kafkaDial opens a client as the default producer of Kafka: idempotent, five requests in flight, no linger.
func kafkaDial(servers map[string]string, options ...kgo.Opt) (*kgo.Client, error) {
	var seeds []string
	for _, address := range servers {
		seeds = append(seeds, address)
	}
	return kgo.NewClient(append(options,
		kgo.SeedBrokers(seeds...),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(0),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
	)...)
}

// newKafkaTopic creates a topic of one partition on all servers, as one ordered log, and returns its name.
func newKafkaTopic(servers map[string]string) (string, error) {
	client, err := kafkaDial(servers)
	if err != nil {
		return "", err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	wanted := kmsg.NewCreateTopicsRequestTopic()
	wanted.Topic = fmt.Sprintf("load-%d", time.Now().UnixNano())
	wanted.NumPartitions, wanted.ReplicationFactor = 1, int16(len(servers))
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics = append(request.Topics, wanted)
	for {
		response, err := request.RequestWith(ctx, client)
		if err == nil {
			err = kerr.ErrorForCode(response.Topics[0].ErrorCode)
		}
		if err == nil {
			return wanted.Topic, nil
		}
		if ctx.Err() != nil {
			return "", err
		}
		time.Sleep(100 * time.Millisecond) // Not all brokers have registered yet.
	}
}

// Put produces a batch.
func (c *kafkaClient) Put() error {
	records := make([]*kgo.Record, c.work.Batch)
	for at := range records {
		records[at] = &kgo.Record{Value: c.work.Value}
	}
	return c.producer.ProduceSync(context.Background(), records...).FirstErr()
}
