// Package hashslot computes the hash slots of keys on a Redis Cluster.
package hashslot

import "bytes"

// Slots is the number of hash slots of a Cluster.
const Slots = 16384

// Of returns the slot of a key as the Cluster specification defines it: a CRC-16 modulo Slots. The
// CRC is computed of the part between the first braces, or of the whole key if that part is missing
// or empty.
func Of(key []byte) uint16 {
	if begin := bytes.IndexByte(key, '{') + 1; begin > 0 {
		if n := bytes.IndexByte(key[begin:], '}'); n > 0 {
			key = key[begin : begin+n]
		}
	}
	crc := uint16(0)
	for _, b := range key {
		crc = crc<<8 ^ crc16[byte(crc>>8)^b]
	}
	return crc % Slots
}

// crc16 is the table of the CRC-16 with the XMODEM polynomial, one entry for each value of a byte.
var crc16 = func() (table [256]uint16) {
	const polynomial = 0x1021
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= polynomial
			}
		}
		table[i] = crc
	}
	return table
}()
