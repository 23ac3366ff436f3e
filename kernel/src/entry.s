# The two ways a CPU enters the kernel. Both end in Rust, in 64-bit mode, on a stack, with paging on.
#
# Boot CPU: PVH. The loader finds the note, enters pvh_start in 32-bit mode without paging, %ebx = start info.
# All others: INIT and SIPI enter the trampoline in 16-bit mode at TRAMPOLINE, to where it has been copied.

.set CODE64, 0x08
.set DATA, 0x10
.set CODE32, 0x18
.set CR4, (1 << 5) | (1 << 7) | (1 << 9) | (1 << 10)    # PAE, PGE, OSFXSR, OSXMMEXCPT
.set CR0, (1 << 31) | (1 << 16) | (1 << 5) | (1 << 1) | 1   # PG, WP, NE, MP, PE
.set EFER, 0xc0000080
.set EFER_BITS, (1 << 8) | (1 << 11)                    # LME, NXE
.set TRAMPOLINE, 0x8000

.section .note.pvh, "a", @note
    .align 4
    .long 4, 8, 18
    .asciz "Xen"
    .quad pvh_start

.section .text.entry, "ax"
.code32
.global pvh_start
pvh_start:
    cli
    cld
    mov %ebx, %ebp
    # One to one, 512 GiB: by 1 GiB pages, the first 1 GiB by 2 MiB, the first 4 MiB by 4 KiB, so that the page
    # below the stack is not mapped, and page 0 can go (paging.rs) once the loader's structures in it have been read.
    mov $boot_pdpt + 3, %eax
    mov %eax, boot_pml4
    mov $boot_pd + 3, %eax
    mov %eax, boot_pdpt
    mov $boot_pt + 3, %eax
    mov %eax, boot_pd
    mov $1, %ecx
1:  mov %ecx, %eax
    shl $30, %eax
    or $0x83, %eax
    mov %eax, boot_pdpt(,%ecx,8)
    mov %ecx, %eax
    shr $2, %eax
    mov %eax, boot_pdpt+4(,%ecx,8)
    mov %ecx, %eax
    shl $21, %eax
    or $0x83, %eax
    mov %eax, boot_pd(,%ecx,8)
    inc %ecx
    cmp $512, %ecx
    jne 1b
    movl $boot_pt + 4096 + 3, boot_pd + 8
    xor %ecx, %ecx
2:  mov %ecx, %eax
    shl $12, %eax
    or $3, %eax
    mov %eax, boot_pt(,%ecx,8)
    inc %ecx
    cmp $1024, %ecx
    jne 2b
    mov $boot_guard, %eax
    shr $12, %eax
    movl $0, boot_pt(,%eax,8)

    mov $boot_pml4, %eax
    mov %eax, %cr3
    mov $CR4, %eax
    mov %eax, %cr4
    mov $EFER, %ecx
    rdmsr
    or $EFER_BITS, %eax
    wrmsr
    mov $CR0, %eax
    mov %eax, %cr0
    lgdt boot_gdt_pointer
    ljmp $CODE64, $pvh_start64
.code64
pvh_start64:
    mov $DATA, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    lea boot_stack_end(%rip), %rsp
    mov %ebp, %edi
    xor %ebp, %ebp
    call boot_cpu_main
    ud2

.section .rodata.entry, "a"
.align 8
.global boot_gdt
boot_gdt:
    .quad 0
    .quad 0x00af9a000000ffff        # 64-bit code
    .quad 0x00cf92000000ffff        # data
    .quad 0x00cf9a000000ffff        # 32-bit code, on the way up only
boot_gdt_pointer:
    .word 31
    .quad boot_gdt

# Copied to TRAMPOLINE, one CPU at a time: the fields at its end say which.
.align 16
.global trampoline, trampoline_end, trampoline_fields
.code16
trampoline:
    cli
    cld
    xor %ax, %ax
    mov %ax, %ds
    lgdtl TRAMPOLINE + trampoline_gdt_pointer - trampoline
    mov %cr0, %eax
    or $1, %al
    mov %eax, %cr0
    ljmpl $CODE32, $TRAMPOLINE + trampoline32 - trampoline
.code32
trampoline32:
    mov $DATA, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    mov $CR4, %eax
    mov %eax, %cr4
    mov TRAMPOLINE + trampoline_fields - trampoline, %eax
    mov %eax, %cr3
    mov $EFER, %ecx
    rdmsr
    or $EFER_BITS, %eax
    wrmsr
    mov $CR0, %eax
    mov %eax, %cr0
    ljmp $CODE64, $TRAMPOLINE + trampoline64 - trampoline
.code64
trampoline64:
    mov TRAMPOLINE + trampoline_fields - trampoline + 8, %rsp
    mov TRAMPOLINE + trampoline_fields - trampoline + 16, %rdi
    mov TRAMPOLINE + trampoline_fields - trampoline + 24, %rax
    xor %ebp, %ebp
    call *%rax
    ud2
.align 8
trampoline_gdt_pointer:
    .word 31
    .quad boot_gdt
.align 8
trampoline_fields:                  # page tables, stack, argument, entry
    .quad 0, 0, 0, 0
trampoline_end:

.section .bss.entry, "aw", @nobits
.align 4096
.global boot_pml4, boot_pt, boot_guard
boot_pml4: .skip 4096
boot_pdpt: .skip 4096
boot_pd:   .skip 4096
boot_pt:   .skip 2 * 4096
boot_guard: .skip 4096              # never mapped
boot_stack: .skip 65536
boot_stack_end:
