//! What a kernel's siw sends wrong, and those who send to it or ask it must avoid.
//!
//! Linux's siw copies the payload of a small FPDU behind its header
//! (`siw_try_1seg` of siw_qp_tx.c, the same in every version so far, 5.3 to 7.2). Where its own thread
//! does that, which is always so for READ RESPONSEs, and the one segment lies across
//! the border of two pages, it copies as many bytes from the first page as belong to
//! the second. Requests of two segments, and longer ones, go another way, which is right.

/// The longest payload that siw copies so (`MAX_HDR_INLINE`).
const FEW: u64 = 32;
/// The smallest page of any processor that siw runs on: the borders of larger ones
/// are borders of these, too.
const PAGE: u64 = 4096;

/// Where to cut bytes that siw would send wrong: how many of them lie before the
/// border of two pages. None if they are too many for siw to copy, or lie in one page.
pub(crate) fn few_across(addr: u64, len: u64) -> Option<u32> {
    let before = PAGE - addr % PAGE;
    if len > FEW || len <= before { None } else { u32::try_from(before).ok() }
}

#[cfg(test)]
mod tests {
    use super::few_across;

    #[test]
    fn cut_only_where_few_bytes_lie_in_two_pages() {
        let cut = |addr: u64, len| few_across(0x7fff_0000_0000 + addr, len);
        assert_eq!(cut(4096 - 6, 7), Some(6));
        assert_eq!(cut(4096 - 1, 32), Some(1));
        assert_eq!(cut(3 * 4096 - 31, 32), Some(31));
        assert_eq!(cut(4096 - 7, 7), None, "ends at the border");
        assert_eq!(cut(4096, 32), None, "begins at the border");
        assert_eq!(cut(4096 - 6, 33), None, "not copied");
        assert_eq!(cut(100, 0), None);
        assert_eq!(few_across(u64::MAX, 2), Some(1), "no overflow at the end of the addresses");
    }
}
