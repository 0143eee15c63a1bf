//! A fault of the kernel's siw: it sends small payloads that cross a page border wrongly. A
//! sender over siw, and a reader of a peer on siw, must cut such payloads at the border.
//!
//! Linux's siw copies the payload of a small FPDU behind its header (`siw_try_1seg` of
//! siw_qp_tx.c, the same in every version so far, 5.3 to 7.2). The fault shows where siw's own
//! thread does that, which it always does for READ RESPONSEs, and where the one segment lies
//! across the border of two pages: then siw copies as many bytes from the first page as belong
//! to the second. Requests of two segments, and longer ones, take another path, which is
//! correct.

/// Longest payload in bytes that siw copies (`MAX_HDR_INLINE`).
const COPIED: u64 = 32;
/// Smallest page of any processor that siw runs on. The borders of larger pages are borders of
/// these, too.
const PAGE: u64 = 4096;

/// Returns how many bytes to send first so that siw sends all of them correctly: those before
/// the page border. None if siw does not copy that many bytes, or if they lie in one page.
pub(crate) fn cut_at_page(addr: u64, len: u64) -> Option<u32> {
    let before = PAGE - addr % PAGE;
    if len > COPIED || len <= before { None } else { u32::try_from(before).ok() }
}

#[cfg(test)]
mod tests {
    use super::cut_at_page;

    #[test]
    fn cuts_only_a_few_bytes_that_lie_in_two_pages() {
        let cut = |addr: u64, len| cut_at_page(0x7fff_0000_0000 + addr, len);
        assert_eq!(cut(4096 - 6, 7), Some(6));
        assert_eq!(cut(4096 - 1, 32), Some(1));
        assert_eq!(cut(3 * 4096 - 31, 32), Some(31));
        assert_eq!(cut(4096 - 7, 7), None, "ends at the border");
        assert_eq!(cut(4096, 32), None, "begins at the border");
        assert_eq!(cut(4096 - 6, 33), None, "not copied");
        assert_eq!(cut(100, 0), None);
        assert_eq!(cut_at_page(u64::MAX, 2), Some(1), "no overflow at the end of the addresses");
    }
}
