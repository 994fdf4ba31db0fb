// Package migrate has code before and after migrations from other libraries. The pages of
// docs/migrate quote it. Tests check that both versions admit the same requests.
package migrate
