package storagetest

import "slices"

// ruleCases are the sentences of the contract, one case each.
func ruleCases() []testCase {
	return slices.Concat(
		enqueueRules(), uniqueRules(), depthRules(), claimRules(), settleRules(), extendRules(),
		sweepRules(), retentionRules(), changeRules(), listRules(), countRules(), recordRules(), callRules(),
	)
}
