package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const timeout = 60 * time.Second

// etcdClient is a connection to the leader. A batch is one transaction.
type etcdClient struct {
	client *clientv3.Client
	batch  int
	value  string
	next   atomic.Int64
}

func connectEtcd(servers map[string]string, work Work) ([]Client, error) {
	leader, err := etcdLeader(servers)
	if err != nil {
		return nil, err
	}
	var clients []Client
	for range work.Clients {
		client, err := etcdDial(leader)
		if err != nil {
			return nil, err
		}
		clients = append(clients, &etcdClient{client: client, batch: work.Batch, value: string(work.Value)})
	}
	return clients, nil
}

func etcdDial(address string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: []string{address}, DialTimeout: timeout, Logger: zap.NewNop(), MaxCallSendMsgSize: 8 << 20,
	})
}

func etcdLeader(servers map[string]string) (string, error) {
	for _, address := range servers {
		client, err := etcdDial(address)
		if err != nil {
			return "", err
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		status, err := client.Status(ctx, address)
		if err != nil {
			return "", err
		}
		if status.Leader == status.Header.MemberId {
			return address, nil
		}
	}
	return "", errors.New("no member of etcd leads")
}

// Put is one put, or one transaction of them.
func (c *etcdClient) Put() error {
	first := int(c.next.Add(int64(c.batch))) - c.batch
	if c.batch == 1 {
		_, err := c.client.Put(context.Background(), keyOf(first), c.value)
		return err
	}
	puts := make([]clientv3.Op, c.batch)
	for at := range puts {
		puts[at] = clientv3.OpPut(keyOf(first+at), c.value)
	}
	_, err := c.client.Txn(context.Background()).Then(puts...).Commit()
	return err
}
