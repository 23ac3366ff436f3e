# Where interrupts and exceptions arrive. Every gate has a stack of its own, for Rust code has a red zone.

.section .text.vectors, "ax"
.code64

# An exception: say which, keep all registers for the report, never come back.
exception:
    push %r15
    push %r14
    push %r13
    push %r12
    push %r11
    push %r10
    push %r9
    push %r8
    push %rbp
    push %rdi
    push %rsi
    push %rdx
    push %rcx
    push %rbx
    push %rax
    cld
    mov %rsp, %rdi
    and $-16, %rsp
    call exception_report
    ud2

# Stub n lies 16 * n bytes behind exception_stubs.
.align 16
.global exception_stubs
exception_stubs:
.set vector, 0
.rept 32
    .align 16
    # These push an error code themselves: 8, 10 to 14, 17, 21, 29, 30.
    .if (vector == 8) || ((vector >= 10) && (vector <= 14)) || (vector == 17) || (vector == 21) || (vector == 29) || (vector == 30)
    .else
    push $0
    .endif
    push $vector
    jmp exception
    .set vector, vector + 1
.endr

# A CPU was woken: that it left `hlt` is all. Registers are kept, the interrupt is acknowledged.
.align 16
.global wake_vector, spurious_vector
wake_vector:
    push %rax
    mov $0xfee000b0, %eax
    movl $0, (%rax)
    pop %rax
spurious_vector:
    iretq
