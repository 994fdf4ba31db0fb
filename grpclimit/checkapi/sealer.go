package checkapi

type sealer struct{}

func newSealer([]byte) *sealer { return nil }
