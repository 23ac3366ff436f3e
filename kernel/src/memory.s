# What compiled Rust expects of its surroundings: the C library's memory functions.

.section .text.memory, "ax"
.code64
.global memcpy, memmove, memset, memcmp, bcmp, strlen

memmove:
    mov %rdi, %rax
    sub %rsi, %rax
    cmp %rdx, %rax
    jae memcpy                      # the end of the source is not overwritten too early
    mov %rdi, %rax
    mov %rdx, %rcx
    lea -1(%rdi,%rdx), %rdi
    lea -1(%rsi,%rdx), %rsi
    std
    rep movsb
    cld
    ret

memcpy:
    mov %rdi, %rax
    mov %rdx, %rcx
    shr $3, %rcx
    rep movsq
    mov %edx, %ecx
    and $7, %ecx
    rep movsb
    ret

memset:
    mov %rdi, %r8
    movzbl %sil, %eax
    mov $0x0101010101010101, %rcx
    imul %rcx, %rax
    mov %rdx, %rcx
    shr $3, %rcx
    rep stosq
    mov %edx, %ecx
    and $7, %ecx
    rep stosb
    mov %r8, %rax
    ret

bcmp:
memcmp:
    xor %eax, %eax
    xor %ecx, %ecx
1:  cmp %rdx, %rcx
    je 2f
    movzbl (%rdi,%rcx), %eax
    movzbl (%rsi,%rcx), %r8d
    inc %rcx
    sub %r8d, %eax
    je 1b
2:  ret

strlen:
    xor %eax, %eax
3:  cmpb $0, (%rdi,%rax)
    je 4f
    inc %rax
    jmp 3b
4:  ret
