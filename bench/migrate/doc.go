// Package migrate has code before and after a migration from other libraries. The pages of
// docs/migrate quote it. Tests run both versions on one Redis: they admit the same requests.
package migrate
