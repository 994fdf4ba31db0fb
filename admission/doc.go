// Package admission decides requests of any protocol by a policy.
//
// A transport describes a request by its attributes and calls [Controller.Admit]. Admit evaluates
// the rules, calls the store, waits if a limit lets requests wait, and emits one event. The
// transport responds according to the [Outcome], with what the [Admission] may show the client.
// When the request has been served, or rejected, the transport calls [Admission.Done] with the
// result.
package admission
