#include "textflag.h"

// func rawVfork(flags uintptr, tid *int32) (pid uintptr, errno syscall.Errno)
TEXT ·rawVfork(SB),NOSPLIT,$0-32
	MOVD	flags+0(FP), R0
	MOVD	$0, R1	// stack: the parent's
	MOVD	tid+8(FP), R2
	MOVD	$0, R3
	MOVD	$0, R4
	MOVD	$220, R8	// clone; the return address stays in the link register
	SVC
	CMN	$4095, R0
	BCS	failed
	MOVD	R0, pid+16(FP)
	MOVD	ZR, errno+24(FP)
	RET
failed:
	MOVD	$-1, R4
	MOVD	R4, pid+16(FP)
	NEG	R0, R0
	MOVD	R0, errno+24(FP)
	RET
