//! Copies past the cache, and hints to it.
//!
//! A store to memory that is not in the cache reads its line first, and evicts another. A copy of
//! more than the caches hold spends a third of its traffic on that, without use: when a thread
//! reads the first bytes, they are in memory again. Non-temporal stores leave the cache alone.
//! They have no order, so a fence ends them.

/// A hint about a cache line. It faults nowhere and changes nothing, so any address is allowed,
/// and a processor that does not know it goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hint {
    /// This processor writes to it soon: fetch it, exclusively.
    Take,
    /// This processor reads it soon: fetch it.
    Fetch,
    /// Another processor reads it next: move it to a cache that all can reach.
    Give,
}

/// Gives a hint for the lines of `len` bytes at `at`, where a line begins.
pub(crate) fn hint(hint: Hint, at: *const u8, len: usize) {
    for line in (0..len).step_by(LINE).map(|line| at.wrapping_add(line)) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        match hint {
            // SAFETY: the instruction touches no register and no flag, and memory only as the
            // hint says.
            Hint::Take => unsafe {
                std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags));
            },
            // SAFETY: as for `Take`.
            Hint::Fetch => unsafe {
                std::arch::asm!("prefetcht0 [{}]", in(reg) line, options(nostack, preserves_flags));
            },
            // SAFETY: as for `Take`.
            Hint::Give => unsafe {
                std::arch::asm!("cldemote [{}]", in(reg) line, options(nostack, preserves_flags));
            },
        }
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        match hint {
            // SAFETY: the instruction touches no register and no flag, and memory only as the
            // hint says.
            Hint::Take => unsafe {
                std::arch::asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags));
            },
            // SAFETY: as for `Take`.
            Hint::Fetch => unsafe {
                std::arch::asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags));
            },
            // The processor has no instruction for it.
            Hint::Give => {}
        }
        #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
        let _ = (hint, line);
    }
}

/// Copies `len` bytes as `std::ptr::copy_nonoverlapping` does. It pays for megabytes.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) unsafe fn copy_past_cache(src: *const u8, dst: *mut u8, len: usize) {
    const PAGE: usize = 4096;
    /// Pages that are copied at a time, one line of each in turn, because memory serves several
    /// streams faster than one.
    const STREAMS: usize = 4;
    const BLOCK: usize = PAGE * STREAMS;

    // The stores need addresses of whole lines.
    let before = dst.align_offset(LINE).min(len);
    let end = before + (len - before) / BLOCK * BLOCK;
    // SAFETY: the caller's promise, for the first `before` bytes.
    unsafe { std::ptr::copy(src, dst, before) };
    for block in (before..end).step_by(BLOCK) {
        for line in (0..PAGE).step_by(LINE) {
            for page in (0..BLOCK).step_by(PAGE) {
                // SAFETY: this line and the next `LINE` bytes end at `end` or before, so
                // inside of both by the caller's promise; `dst` is at the start of a line.
                unsafe { stream_line(src, dst, block + page + line) };
            }
        }
    }
    // SAFETY: the instruction, which has no operands.
    unsafe { std::arch::x86_64::_mm_sfence() };
    let (src, dst) = (src.wrapping_add(end), dst.wrapping_add(end));
    // SAFETY: the caller's promise, for the bytes from `end` on.
    unsafe { std::ptr::copy(src, dst, len - end) };
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Copies the line at offset `at`.
///
/// # Safety
/// As for [`copy_past_cache`], for these bytes. `dst + at` must be a multiple of `LINE`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn stream_line(src: *const u8, dst: *mut u8, at: usize) {
    use std::arch::x86_64::{__m128i, _mm_stream_si128};
    let (src, dst) = (src.wrapping_add(at), dst.wrapping_add(at).cast::<__m128i>());
    // SAFETY: a line of the source; any bytes are four such vectors.
    let quarters = unsafe { src.cast::<[__m128i; 4]>().read_unaligned() };
    for (i, quarter) in quarters.into_iter().enumerate() {
        // SAFETY: a quarter of the line of the destination, aligned as the line is; every
        // x86-64 processor has SSE2.
        unsafe { _mm_stream_si128(dst.wrapping_add(i), quarter) };
    }
}

/// Copies as usual, where the processor has no such stores.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) unsafe fn copy_past_cache(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy(src, dst, len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_and_no_other_changes() {
        let from: Vec<u8> =
            (0..100_000u32).map(|i| i.to_le_bytes().iter().fold(7, |a, b| a ^ b)).collect();
        for (start, to, len) in
            [(0, 0, 0), (1, 3, 63), (5, 1, 4095), (0, 0, 16_384), (7, 63, 16_447), (3, 64, 70_001)]
        {
            let mut into = vec![0xa5; 100_000];
            let (src, dst) = (from[start..].as_ptr(), into[to..].as_mut_ptr());
            // SAFETY: `start + len` and `to + len` are inside of the vectors.
            unsafe { copy_past_cache(src, dst, len) };
            assert_eq!(into[to..to + len], from[start..start + len]);
            assert!(
                into[..to].iter().chain(&into[to + len..]).all(|b| *b == 0xa5),
                "{start} {to} {len}"
            );
        }
    }
}
