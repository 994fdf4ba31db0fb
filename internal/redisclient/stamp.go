package redisclient

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
)

// A stamp shows which call a reply answers. In the protocol of Redis, only the order of the replies
// shows that: if one reply is lost or comes twice, each later one seems to answer another command.
// So a script gets a stamp, and begins its reply with the stamp's number.
//
// A stamp has 6 bytes that are the same for all calls of this process, and 2 bytes with the number.
const (
	StampSize = 8
	stampAt   = 8 // index of the stamp in an argument of a script

	stampNumberSize = 2
)

// stampBegin is random, so that no key or argument of a user is taken for a stamp.
var stampBegin = [StampSize - stampNumberSize]byte(binary.LittleEndian.AppendUint64(nil, rand.Uint64())[:])

// PutStamp writes the stamp of a number to an argument, after the first 8 bytes.
func PutStamp(argument []byte, number uint16) {
	copy(argument[stampAt:], stampBegin[:])
	binary.LittleEndian.PutUint16(argument[stampAt+len(stampBegin):], number)
}

var errOtherStamp = errors.New("the script's reply is that of another call")

// CutStamp returns a reply without the stamp's number. It returns an error if the reply begins with
// another number.
func CutStamp(reply string, number uint16) (string, error) {
	if len(reply) < stampNumberSize || binary.LittleEndian.Uint16([]byte(reply[:stampNumberSize])) != number {
		return "", errOtherStamp
	}
	return reply[stampNumberSize:], nil
}
