#include "textflag.h"

// func rawVfork(flags uintptr, tid *int32) (pid uintptr, errno syscall.Errno)
TEXT ·rawVfork(SB),NOSPLIT|NOFRAME,$0-32
	MOVQ	flags+0(FP), DI
	XORQ	SI, SI	// stack: the parent's
	MOVQ	tid+8(FP), DX
	XORQ	R10, R10
	XORQ	R8, R8
	MOVQ	$56, AX	// clone
	POPQ	R12	// the return address; the child will overwrite its place
	SYSCALL
	PUSHQ	R12
	CMPQ	AX, $-4095
	JCC	failed
	MOVQ	AX, pid+16(FP)
	MOVQ	$0, errno+24(FP)
	RET
failed:
	NEGQ	AX
	MOVQ	$-1, pid+16(FP)
	MOVQ	AX, errno+24(FP)
	RET
