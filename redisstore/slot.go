package redisstore

import "bytes"

// slots is the number of hash slots of a Cluster.
const slots = 16384

// slotOf returns the slot of a key of this package: the CRC-16 (XMODEM) of the part between its
// braces, modulo slots, as the Cluster specification says.
func slotOf(key []byte) uint16 {
	begin := bytes.IndexByte(key, '{') + 1
	end := begin + bytes.IndexByte(key[begin:], '}')
	crc := uint16(0)
	for _, b := range key[begin:end] {
		crc = crc<<8 ^ crc16[byte(crc>>8)^b]
	}
	return crc % slots
}

var crc16 = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
		table[i] = crc
	}
	return table
}()
