package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
)

// As quire's Python client: single commands that are submitted while this many messages are unanswered gather in one.
const (
	messagesUnanswered = 16
	messageCommands    = 1024
	messageBytes       = 512 << 10
)

const (
	finalBinary = 0x82
	masked      = 0x80 // With a mask of zeros, which leaves the payload as it is.
	twoBytes    = 126
	eightBytes  = 127
)

// quireClient is a session and its command stream. Messages are answered in the order in which they were sent.
type quireClient struct {
	connection net.Conn
	commands   [][]byte // Packed, one for each key.
	batch      int
	gathered   int // The most Puts that share a message.

	mutex    sync.Mutex
	sequence int
	queue    []chan error
	sent     [][]chan error
	frame    []byte
}

func connectQuire(servers map[string]string, work Work) ([]Client, error) {
	var status struct {
		Leader string `json:"leader"`
	}
	for _, address := range servers {
		if err := call(http.Get("http://" + address + "/status"))(&status); err != nil {
			return nil, err
		}
		break
	}
	address := servers[status.Leader]
	commands := make([][]byte, 1000)
	for number := range commands {
		commands[number] = packPut(keyOf(number), work.Value)
	}
	gathered := 1
	if work.Batch == 1 {
		gathered = max(1, min(messageCommands, messageBytes/len(commands[0])))
	}
	var clients []Client
	for range work.Clients {
		client := &quireClient{commands: commands, batch: work.Batch, gathered: gathered, sequence: 1}
		if err := client.open(address); err != nil {
			return nil, err
		}
		clients = append(clients, client)
	}
	return clients, nil
}

// call decodes the JSON of a response.
func call(response *http.Response, err error) func(document any) error {
	return func(document any) error {
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode >= 300 {
			problem, _ := io.ReadAll(response.Body)
			return fmt.Errorf("%s: %s", response.Status, problem)
		}
		return json.NewDecoder(response.Body).Decode(document)
	}
}

func packPut(key string, value []byte) []byte {
	packed := append([]byte{0x93, 0xa3}, "put"...)
	packed = append(append(packed, 0xa0|byte(len(key))), key...)
	if len(value) < 1<<8 {
		packed = append(packed, 0xc4, byte(len(value)))
	} else {
		packed = binary.BigEndian.AppendUint16(append(packed, 0xc5), uint16(len(value)))
	}
	return append(packed, value...)
}

func (c *quireClient) open(address string) error {
	var opened struct {
		Session int64 `json:"session"`
	}
	reply, err := http.Post("http://"+address+"/sessions", "application/json", strings.NewReader("{}"))
	if err := call(reply, err)(&opened); err != nil {
		return err
	}
	if c.connection, err = net.Dial("tcp", address); err != nil {
		return err
	}
	fmt.Fprintf(c.connection, "GET /commands/stream?session=%d HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\n"+
		"Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n",
		opened.Session, address)
	reader := bufio.NewReaderSize(c.connection, 64<<10)
	upgraded, err := http.ReadResponse(reader, nil)
	if err != nil {
		return err
	}
	if upgraded.StatusCode != http.StatusSwitchingProtocols {
		return errors.New(upgraded.Status)
	}
	go c.read(reader)
	return nil
}

// Put sends a message at once, or with others once an earlier message is answered.
func (c *quireClient) Put() error {
	done := make(chan error, 1)
	c.mutex.Lock()
	c.queue = append(c.queue, done)
	err := c.flush()
	c.mutex.Unlock()
	if err != nil {
		return err
	}
	return <-done
}

// flush sends what may be sent. A blocked write delays the reader: the server reads on, as its answers fit its buffer.
func (c *quireClient) flush() error {
	for len(c.queue) > 0 && len(c.sent) < messagesUnanswered {
		puts := min(len(c.queue), c.gathered)
		message := c.message(puts * c.batch)
		c.sent = append(c.sent, c.queue[:puts:puts])
		c.queue = c.queue[puts:]
		if _, err := c.connection.Write(message); err != nil {
			return err
		}
	}
	return nil
}

// message is the frame of the next [sequence, commands].
func (c *quireClient) message(count int) []byte {
	head := appendArray(appendUint([]byte{0x92}, c.sequence), count)
	size := len(head)
	for at := range count {
		size += len(c.commands[(c.sequence+at)%len(c.commands)])
	}
	frame := append(c.frame[:0], finalBinary)
	switch {
	case size < twoBytes:
		frame = append(frame, masked|byte(size))
	case size < 1<<16:
		frame = binary.BigEndian.AppendUint16(append(frame, masked|twoBytes), uint16(size))
	default:
		frame = binary.BigEndian.AppendUint64(append(frame, masked|eightBytes), uint64(size))
	}
	frame = append(append(frame, 0, 0, 0, 0), head...)
	for at := range count {
		frame = append(frame, c.commands[(c.sequence+at)%len(c.commands)]...)
	}
	c.sequence += count
	c.frame = frame
	return frame
}

// appendUint packs a number, and appendArray the head of an array, in the shortest form, which quire demands.
func appendUint(packed []byte, number int) []byte {
	switch {
	case number < 1<<7:
		return append(packed, byte(number))
	case number < 1<<8:
		return append(packed, 0xcc, byte(number))
	case number < 1<<16:
		return binary.BigEndian.AppendUint16(append(packed, 0xcd), uint16(number))
	case number < 1<<32:
		return binary.BigEndian.AppendUint32(append(packed, 0xce), uint32(number))
	default:
		return binary.BigEndian.AppendUint64(append(packed, 0xcf), uint64(number))
	}
}

func appendArray(packed []byte, count int) []byte {
	if count < 16 {
		return append(packed, 0x90|byte(count))
	}
	return binary.BigEndian.AppendUint16(append(packed, 0xdc), uint16(count))
}

// read takes the answers, [sequence, index, epoch, results, refused]: of commands that were executed, the last is empty.
func (c *quireClient) read(reader *bufio.Reader) {
	for {
		answer, err := readFrame(reader)
		if err == nil && (answer[0] != 0x95 || answer[len(answer)-1] != 0x90) {
			err = fmt.Errorf("a problem: %q", answer)
		}
		if err != nil {
			fail(err)
		}
		c.mutex.Lock()
		answered := c.sent[0]
		c.sent = c.sent[1:]
		err = c.flush()
		c.mutex.Unlock()
		for _, done := range answered {
			done <- err
		}
	}
}

func readFrame(reader *bufio.Reader) ([]byte, error) {
	var head [8]byte
	if _, err := io.ReadFull(reader, head[:2]); err != nil {
		return nil, err
	}
	kind, size := head[0], uint64(head[1])
	switch size {
	case twoBytes:
		if _, err := io.ReadFull(reader, head[:2]); err != nil {
			return nil, err
		}
		size = uint64(binary.BigEndian.Uint16(head[:]))
	case eightBytes:
		if _, err := io.ReadFull(reader, head[:8]); err != nil {
			return nil, err
		}
		size = binary.BigEndian.Uint64(head[:])
	}
	payload := make([]byte, size)
	if _, err := io.ReadFull(reader, payload); err != nil {
		return nil, err
	}
	if kind != finalBinary || size < 2 {
		return nil, fmt.Errorf("a frame of kind %x: %q", kind, payload)
	}
	return payload, nil
}
