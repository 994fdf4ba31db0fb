// Package migrate has the code before and after a migration from other libraries. The pages of
// docs/migrate quote it, and a test runs both on one Redis: each pair admits the same requests.
package migrate
