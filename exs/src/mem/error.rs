//! The reasons why memory cannot be used.

/// The reason why memory could not be allocated or addressed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemError {
    /// The range is not inside the region.
    #[error("range of {len} bytes at offset {offset} is outside of a region of {region} bytes")]
    OutOfBounds {
        /// First byte of the range.
        offset: usize,
        /// Length of the range in bytes.
        len: usize,
        /// Size of the region in bytes.
        region: usize,
    },
    /// A live buffer holds some of these bytes.
    #[error(
        "bytes {start}..{end} of the region are in use: a buffer has {by_start}..{by_end}; \
         drop it, or wait for the event that brings it back"
    )]
    Leased {
        /// First byte of the range.
        start: usize,
        /// End of the range.
        end: usize,
        /// First byte of the buffer in the way.
        by_start: usize,
        /// End of the buffer in the way.
        by_end: usize,
    },
    /// The kernel refused to map memory.
    #[error("cannot map {len} bytes of memory: {}", std::io::Error::from_raw_os_error(*.errno))]
    Map {
        /// Number of bytes.
        len: usize,
        /// The errno of mmap(2).
        errno: i32,
    },
    /// The length is 0, or more than `isize::MAX`.
    #[error("a memory region cannot be {len} bytes long")]
    BadLength {
        /// Number of bytes.
        len: usize,
    },
    /// Processors cannot reach the memory: it is a dma-buf whose exporter does not let them map it
    /// ([`MemoryRegion::from_dmabuf`](crate::MemoryRegion::from_dmabuf)).
    #[error(
        "processors cannot reach this memory of another device, as its exporter lets no process map \
         it: use it in one-sided operations (export, read, write) over an RDMA device"
    )]
    Unmapped,
}
