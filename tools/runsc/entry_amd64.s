#include "textflag.h"

// entry is where the kernel starts the program (-ldflags=-E=main.entry). It has the table of file
// descriptors made as large as gVisor needs it, for 256, and goes on to Go's own entry. A table that
// grows in a process with more than one thread waits for a grace period of the kernel's, some ten
// milliseconds each time.
TEXT ·entry(SB), NOSPLIT|NOFRAME, $0
	MOVQ $0, DI
	MOVQ $1030, SI // F_DUPFD_CLOEXEC
	MOVQ $255, DX
	MOVQ $72, AX // fcntl
	SYSCALL
	TESTQ AX, AX
	JLT done
	MOVQ AX, DI
	MOVQ $3, AX // close
	SYSCALL
done:
	JMP _rt0_amd64_linux(SB)
