//! Pretended adapters: the limits of devices that the test bed lacks.
//!
//! The kernel's rxe and siw can nearly everything. Real adapters have no shared receive queues, few
//! segments, no memory windows or short queues. With EXS_TEST_ADAPTER set to a name below, a build
//! with the feature `internals` hides what such an adapter lacks, and refuses what it would refuse.
//! So the contract suites run over each of them. `spec-notes/verbs-mapping.md` has the sources of
//! the limits.

use std::io;
use std::os::fd::BorrowedFd;
#[cfg(any(test, feature = "internals"))]
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

#[cfg(any(test, feature = "internals"))]
use super::abi as sys;
use super::device::Attr;
use super::{Domain, Registration};
use crate::mem::Atomics;

/// The limits of an adapter, and the functions that it has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Profile {
    #[cfg(any(test, feature = "internals"))]
    name: &'static str,
    shared_queues: bool,
    max_sge: u32,
    max_qp_wr: u32,
    max_cqe: u32,
    max_inline: u32,
    /// READs that a queue pair answers and issues at a time.
    max_rd_atomic: u32,
    windows: bool,
    /// Atomic operations.
    atomics: bool,
    /// It reports `IBV_EVENT_QP_LAST_WQE_REACHED`.
    last_wqe: bool,
    /// It takes dma-bufs: pretended with memfds, which no driver of the test bed would take.
    dmabufs: bool,
}

/// An adapter without limits that rxe and siw do not have.
const PLAIN: Profile = Profile {
    #[cfg(any(test, feature = "internals"))]
    name: "",
    shared_queues: true,
    max_sge: u32::MAX,
    max_qp_wr: u32::MAX,
    max_cqe: u32::MAX,
    max_inline: u32::MAX,
    max_rd_atomic: u32::MAX,
    windows: true,
    atomics: true,
    last_wqe: true,
    dmabufs: false,
};

#[cfg(any(test, feature = "internals"))]
const PROFILES: [Profile; 7] = [
    // Intel E810 (irdma).
    Profile {
        name: "irdma",
        shared_queues: false,
        max_sge: 13,
        max_inline: 101,
        max_rd_atomic: 32,
        windows: false,
        atomics: false,
        last_wqe: false,
        ..PLAIN
    },
    // Alibaba (erdma).
    Profile {
        name: "erdma",
        shared_queues: false,
        max_sge: 1,
        max_inline: 96,
        windows: false,
        last_wqe: false,
        ..PLAIN
    },
    // Microsoft (mana).
    Profile {
        name: "mana",
        shared_queues: false,
        max_sge: 3,
        max_inline: 0,
        windows: false,
        atomics: false,
        last_wqe: false,
        ..PLAIN
    },
    // Chelsio T5 (cxgb4).
    Profile {
        name: "cxgb4",
        shared_queues: false,
        max_sge: 4,
        max_qp_wr: 1024,
        max_rd_atomic: 32,
        windows: false,
        atomics: false,
        last_wqe: false,
        ..PLAIN
    },
    // NVIDIA.
    Profile { name: "mlx5", max_sge: 30, max_rd_atomic: 16, ..PLAIN },
    // An adapter beside a GPU, which peers reach by dma-bufs.
    Profile { name: "gpu", dmabufs: true, ..PLAIN },
    // The least that EXS can do with.
    Profile {
        name: "smallest",
        shared_queues: false,
        max_sge: 1,
        max_qp_wr: 64,
        max_cqe: 256,
        max_inline: 0,
        max_rd_atomic: 1,
        windows: false,
        atomics: false,
        last_wqe: false,
        dmabufs: false,
    },
];

impl Profile {
    /// The adapter that EXS_TEST_ADAPTER names.
    #[cfg(any(test, feature = "internals"))]
    pub(super) fn current() -> &'static Profile {
        static CURRENT: std::sync::OnceLock<&Profile> = std::sync::OnceLock::new();
        CURRENT.get_or_init(|| match std::env::var("EXS_TEST_ADAPTER") {
            Ok(name) if !name.is_empty() => PROFILES
                .iter()
                .find(|p| p.name == name)
                .unwrap_or_else(|| panic!("EXS_TEST_ADAPTER={name} is none of {:?}", names())),
            _ => &PLAIN,
        })
    }

    /// A program has the device that there is. The compiler leaves no check of a limit.
    #[cfg(not(any(test, feature = "internals")))]
    #[inline]
    pub(super) const fn current() -> &'static Profile {
        const { &PLAIN }
    }

    /// Lowers what the device says of itself.
    pub(super) fn lower(&self, attr: &mut Attr) {
        if !self.shared_queues {
            (attr.max_srq, attr.max_srq_wr) = (0, 0);
        }
        attr.max_sge = attr.max_sge.min(self.max_sge);
        attr.max_qp_wr = attr.max_qp_wr.min(self.max_qp_wr);
        attr.max_cqe = attr.max_cqe.min(self.max_cqe);
        attr.max_ird = attr.max_ird.min(self.max_rd_atomic);
        attr.max_ord = attr.max_ord.min(self.max_rd_atomic);
        attr.windows &= self.windows;
        if !self.atomics {
            attr.atomics = Atomics::None;
        }
    }

    /// # Errors
    /// EOPNOTSUPP: it has no such queues.
    pub(super) fn create_srq(&self) -> io::Result<()> {
        refuse_unless(self.shared_queues, libc::EOPNOTSUPP)
    }

    /// # Errors
    /// EOPNOTSUPP: it has no windows.
    pub(super) fn alloc_mw(&self) -> io::Result<()> {
        refuse_unless(self.windows, libc::EOPNOTSUPP)
    }

    /// # Errors
    /// EINVAL: the queue is too long.
    pub(super) fn create_cq(&self, entries: u32) -> io::Result<()> {
        refuse_unless(entries <= self.max_cqe, libc::EINVAL)
    }

    /// # Errors
    /// EINVAL: the queue pair is over a limit. Each pair of numbers is that of sends and receives.
    pub(super) fn create_qp(
        &self,
        wrs: (u32, u32),
        sges: (u32, u32),
        max_inline: u32,
    ) -> io::Result<()> {
        let fits = wrs.0.max(wrs.1) <= self.max_qp_wr
            && sges.0.max(sges.1) <= self.max_sge
            && max_inline <= self.max_inline;
        refuse_unless(fits, libc::EINVAL)
    }

    /// # Errors
    /// EINVAL: more READs at a time than it can answer or issue.
    pub(super) fn connect(&self, ird: u8, ord: u8) -> io::Result<()> {
        refuse_unless(u32::from(ird.max(ord)) <= self.max_rd_atomic, libc::EINVAL)
    }

    /// # Errors
    /// EOPNOTSUPP: it has no atomic operations.
    pub(super) fn atomic(&self) -> io::Result<()> {
        refuse_unless(self.atomics, libc::EOPNOTSUPP)
    }

    /// # Errors
    /// EINVAL: a work request has too many segments.
    pub(super) fn post(&self, sges: usize) -> io::Result<()> {
        refuse_unless(u32::try_from(sges).is_ok_and(|n| n <= self.max_sge), libc::EINVAL)
    }

    /// Registers a dma-buf. None: the device itself does.
    #[cfg(any(test, feature = "internals"))]
    pub(super) fn reg_dmabuf(
        &self,
        pd: &Arc<Domain>,
        (fd, offset): (BorrowedFd<'_>, u64),
        (addr, len): (u64, usize),
        access: u32,
    ) -> Option<io::Result<Registration>> {
        // As the kernel does.
        const KNOWN: u32 = 1 | 2 | 4 | 8;
        if !self.dmabufs {
            return None;
        }
        if access & !KNOWN != 0 || addr % 4096 != offset % 4096 {
            return Some(Err(io::Error::from_raw_os_error(libc::EINVAL)));
        }
        // The program may not map it, but its device may.
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let file = std::fs::File::options().read(true).write(true).open(path);
        let in_page = offset % 4096;
        Some(file.and_then(|file| {
            let whole = len + usize::try_from(in_page).unwrap_or_default();
            let pages = crate::sys::map_shared(file.as_fd(), offset - in_page, whole)?;
            let at = pages.map_addr(|a| a.saturating_add(whole - len));
            // SAFETY: mapped memory, which is registered under other addresses.
            let mr =
                unsafe { sys::ibv_reg_mr_iova2(pd.ptr(), at.as_ptr().cast(), len, addr, access) };
            let made = Registration::adopt(pd, mr);
            // SAFETY: the mapping from above, to which nothing refers: the kernel has the pages.
            unsafe { crate::sys::unmap(pages, whole) };
            made
        }))
    }

    /// The device itself registers a dma-buf.
    #[cfg(not(any(test, feature = "internals")))]
    #[inline]
    pub(super) fn reg_dmabuf(
        &self,
        _: &Arc<Domain>,
        _: (BorrowedFd<'_>, u64),
        _: (u64, usize),
        _: u32,
    ) -> Option<io::Result<Registration>> {
        None
    }

    /// True if it reports the last receive of a queue pair.
    pub(super) fn reports_last_wqe(&self) -> bool {
        self.last_wqe
    }
}

#[cfg(any(test, feature = "internals"))]
fn names() -> Vec<&'static str> {
    PROFILES.iter().map(|p| p.name).collect()
}

fn refuse_unless(fine: bool, errno: i32) -> io::Result<()> {
    if fine { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_lowers_and_refuses_alike() {
        for profile in &PROFILES {
            let max = u32::MAX;
            let mut attr = Attr {
                max_srq: max,
                max_srq_wr: max,
                max_sge: max,
                max_qp_wr: max,
                max_cqe: max,
                max_ird: max,
                max_ord: max,
                windows: true,
                atomics: Atomics::Device,
                ..Attr::default()
            };
            profile.lower(&mut attr);
            assert_eq!(profile.create_srq().is_ok(), attr.max_srq > 0, "{profile:?}");
            assert_eq!(profile.alloc_mw().is_ok(), attr.windows, "{profile:?}");
            assert_eq!(profile.atomic().is_ok(), attr.atomics > Atomics::None, "{profile:?}");
            assert!(profile.create_cq(attr.max_cqe).is_ok());
            let (wrs, sges) = ((attr.max_qp_wr, 1), (attr.max_sge, 1));
            assert!(profile.create_qp(wrs, sges, profile.max_inline).is_ok());
            if profile.max_qp_wr < max {
                assert!(profile.create_qp((1, attr.max_qp_wr + 1), sges, 0).is_err());
            }
            if profile.max_inline < max {
                assert!(profile.create_qp(wrs, sges, profile.max_inline + 1).is_err());
            }
            if profile.max_sge < max {
                let sges = usize::try_from(profile.max_sge).unwrap();
                assert!(profile.post(sges).is_ok() && profile.post(sges + 1).is_err());
            }
        }
    }
}
