#include "textflag.h"

// func in(r *Registers)
TEXT ·in(SB), NOSPLIT, $0-8
	MOVQ r+0(FP), R8
	MOVL 0(R8), AX
	MOVL 4(R8), BX
	MOVL 8(R8), CX
	MOVL 12(R8), DX
	MOVL 16(R8), SI
	MOVL 20(R8), DI
	INL
	MOVL AX, 0(R8)
	MOVL BX, 4(R8)
	MOVL CX, 8(R8)
	MOVL DX, 12(R8)
	MOVL SI, 16(R8)
	MOVL DI, 20(R8)
	RET

// func cpuid(leaf uint32) (ebx, ecx, edx uint32)
TEXT ·cpuid(SB), NOSPLIT, $0-20
	MOVL leaf+0(FP), AX
	XORL CX, CX
	CPUID
	MOVL BX, ebx+8(FP)
	MOVL CX, ecx+12(FP)
	MOVL DX, edx+16(FP)
	RET
