// Package doctor examines the servers of a store: whether Penstock can use them, and what may go
// wrong.
package doctor
