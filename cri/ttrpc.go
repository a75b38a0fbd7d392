package cri

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kubepleg/pleg/cri/internal/wire"
)

// This file makes calls over ttrpc, the protocol of containerd's shims. It supports only calls with
// one answer. github.com/containerd/ttrpc supports more, but every user of this package would then
// depend on a logger and other modules.
//
// A frame is a header and a message. The header contains the message's length, the call's number
// (four bytes each), the frame's type and its flags (one byte each).
//
//	Request  { string service = 1; string method = 2; bytes payload = 3; }
//	Response { Status status = 1; bytes payload = 2; }
//	Status   { int32 code = 1; string message = 2; }
const (
	ttrpcHeaderBytes = 10
	ttrpcRequest     = 1
	ttrpcResponse    = 2

	// maxTTRPCBytes is the size limit of an answer. An answer to Wait takes some 20 bytes; an error
	// contains a text.
	maxTTRPCBytes = 64 << 10
	// ttrpcWriteTimeout bounds a write. The kernel accepts a call at once, unless thousands of
	// calls are unread.
	ttrpcWriteTimeout = time.Second
)

// ttrpcConn is a connection to a shim. One goroutine may send while another receives.
type ttrpcConn struct {
	net.Conn
	last uint32 // the number of the last call
}

// ttrpcAnswer is the answer to a call.
type ttrpcAnswer struct {
	call    uint32
	payload []byte
	err     error // the error of the call, with a gRPC status
}

// dialTTRPC connects to the socket at a path. It does not wait: it fails if too many connections
// wait at the socket to be accepted.
func dialTTRPC(path string) (*ttrpcConn, error) {
	conn, err := net.DialTimeout("unix", path, ttrpcWriteTimeout)
	if err != nil {
		return nil, err
	}
	return &ttrpcConn{Conn: conn}, nil
}

// send makes a call, and returns its number. The method is service/method.
func (c *ttrpcConn) send(method string, payload []byte) (uint32, error) {
	service, method, _ := strings.Cut(method, "/")
	c.last += 2
	call := c.last - 1 // a client's calls have odd numbers
	frame := make([]byte, ttrpcHeaderBytes, 256)
	frame = protowire.AppendString(protowire.AppendTag(frame, 1, protowire.BytesType), service)
	frame = protowire.AppendString(protowire.AppendTag(frame, 2, protowire.BytesType), method)
	frame = protowire.AppendBytes(protowire.AppendTag(frame, 3, protowire.BytesType), payload)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-ttrpcHeaderBytes)) //nolint:gosec // small
	binary.BigEndian.PutUint32(frame[4:], call)
	frame[8] = ttrpcRequest
	if err := c.SetWriteDeadline(wallClock.Now().Add(ttrpcWriteTimeout)); err != nil {
		return 0, err
	}
	_, err := c.Write(frame)
	return call, err
}

// receive waits for an answer to any call. After an error the connection cannot be used any more.
func (c *ttrpcConn) receive() (ttrpcAnswer, error) {
	var header [ttrpcHeaderBytes]byte
	if _, err := io.ReadFull(c, header[:]); err != nil {
		return ttrpcAnswer{}, err
	}
	length, call := binary.BigEndian.Uint32(header[:]), binary.BigEndian.Uint32(header[4:])
	if length > maxTTRPCBytes {
		return ttrpcAnswer{}, fmt.Errorf("an answer of %d bytes", length)
	}
	if kind := header[8]; kind != ttrpcResponse {
		return ttrpcAnswer{}, fmt.Errorf("a frame of type %d", kind)
	}
	message := make([]byte, length)
	if _, err := io.ReadFull(c, message); err != nil {
		return ttrpcAnswer{}, err
	}
	answer := ttrpcAnswer{call: call}
	var code codes.Code
	var text string
	valid := true
	valid = wire.Each(message, func(number int, field []byte, _ uint64) {
		switch number {
		case 1:
			valid = valid && wire.Each(field, func(number int, field []byte, n uint64) {
				switch number {
				case 1:
					code = codes.Code(uint32(n)) //nolint:gosec // as protobuf encodes it
				case 2:
					text = string(field)
				}
			})
		case 2:
			answer.payload = field
		}
	}) && valid
	if !valid {
		return ttrpcAnswer{}, errors.New("an answer that is no message")
	}
	if code != codes.OK {
		answer.err = status.Error(code, cutText(text))
	}
	return answer, nil
}
