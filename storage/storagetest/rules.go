package storagetest

func ruleCases() []testCase { return nil }
