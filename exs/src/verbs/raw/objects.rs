//! Protection domains, registrations, windows, shared receive queues.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi as sys;
use super::profile::Profile;
use super::{Device, HwSge};

/// A protection domain.
pub(in super::super) struct Domain(NonNull<sys::ibv_pd>);

// SAFETY: verbs objects may be used from any thread (ibv_alloc_pd(3) and its kin).
unsafe impl Send for Domain {}
// SAFETY: as for Send.
unsafe impl Sync for Domain {}

impl Domain {
    pub(in super::super) fn new(device: Device) -> io::Result<Arc<Domain>> {
        // SAFETY: the device is open.
        let pd = unsafe { sys::ibv_alloc_pd(device.ptr()) };
        NonNull::new(pd).map(|pd| Arc::new(Domain(pd))).ok_or_else(super::last)
    }

    pub(super) fn ptr(&self) -> *mut sys::ibv_pd {
        self.0.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: ours, and everything made in it held it by its `Arc`.
        unsafe { sys::ibv_dealloc_pd(self.ptr()) };
    }
}

/// A registration of memory (`ibv_mr`).
pub(in super::super) struct Registration {
    mr: NonNull<sys::ibv_mr>,
    _pd: Arc<Domain>,
}

// SAFETY: see `Domain`.
unsafe impl Send for Registration {}
// SAFETY: see `Domain`.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers `len` bytes at `addr` with the `IBV_ACCESS_` bits in `access`. The caller must keep
    /// them mapped as long as this lives. Otherwise the device goes on using the old pages, which
    /// corrupts nothing, but the program does not see them.
    pub(in super::super) fn new(
        pd: &Arc<Domain>,
        addr: u64,
        len: usize,
        access: u32,
    ) -> io::Result<Registration> {
        let at = std::ptr::with_exposed_provenance_mut(usize::try_from(addr).unwrap_or(0));
        // SAFETY: the kernel checks that the range is mapped, and pins it. It is not
        // accessed by this process through the pointer.
        let mr = unsafe { sys::ibv_reg_mr_iova2(pd.ptr(), at, len, addr, access) };
        match NonNull::new(mr) {
            Some(mr) => Ok(Registration { mr, _pd: Arc::clone(pd) }),
            None => Err(super::last()),
        }
    }

    /// Registers `len` bytes of a dma-buf, at `offset` in it, under the addresses from `addr` on. The
    /// kernel keeps the dma-buf as long as this lives.
    ///
    /// # Errors
    /// ENOSYS: the library is older than dma-bufs. The errors of `ibv_reg_dmabuf_mr(3)`.
    pub(in super::super) fn of_dmabuf(
        pd: &Arc<Domain>,
        (fd, offset): (BorrowedFd<'_>, u64),
        (addr, len): (u64, usize),
        access: u32,
    ) -> io::Result<Registration> {
        if let Some(made) = Profile::current().reg_dmabuf(pd, (fd, offset), (addr, len), access) {
            return made;
        }
        let Some(register) = sys::reg_dmabuf_mr() else {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        };
        let access = std::os::raw::c_int::try_from(access).unwrap_or_default();
        super::forget_last();
        // SAFETY: a live domain and an open descriptor. The kernel checks the range; this process
        // accesses no memory by it.
        let mr = unsafe { register(pd.ptr(), offset, len, addr, fd.as_raw_fd(), access) };
        match NonNull::new(mr) {
            Some(mr) => Ok(Registration { mr, _pd: Arc::clone(pd) }),
            None => Err(super::last()),
        }
    }

    /// Takes over what a pretended adapter has registered.
    #[cfg(any(test, feature = "internals"))]
    pub(super) fn adopt(pd: &Arc<Domain>, mr: *mut sys::ibv_mr) -> io::Result<Registration> {
        let mr = NonNull::new(mr).ok_or_else(super::last)?;
        Ok(Registration { mr, _pd: Arc::clone(pd) })
    }

    /// (lkey, rkey).
    pub(in super::super) fn keys(&self) -> (u32, u32) {
        // SAFETY: a live MR; plain numbers are read.
        let lkey = unsafe { (*self.mr.as_ptr()).lkey };
        // SAFETY: as above.
        let rkey = unsafe { (*self.mr.as_ptr()).rkey };
        (lkey, rkey)
    }

    pub(super) fn ptr(&self) -> *mut sys::ibv_mr {
        self.mr.as_ptr()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: ours; freed once. Windows on it hold it by its `Arc`.
        let ret = unsafe { sys::ibv_dereg_mr(self.mr.as_ptr()) };
        debug_assert_eq!(ret, 0, "ibv_dereg_mr");
    }
}

/// A type-2 memory window.
pub(in super::super) struct Window {
    mw: NonNull<sys::ibv_mw>,
    /// The next key: the window's index, and 8 bits of the driver that change with every bind.
    key: u32,
    /// The registration that it is bound to, kept until the window is freed.
    bound: Option<Arc<Registration>>,
    _pd: Arc<Domain>,
}

// SAFETY: see `Domain`.
unsafe impl Send for Window {}
// SAFETY: see `Domain`.
unsafe impl Sync for Window {}

impl Window {
    pub(in super::super) fn new(pd: &Arc<Domain>) -> io::Result<Window> {
        Profile::current().alloc_mw()?;
        // SAFETY: a live domain; the driver has the call (the device said it has
        // windows), and `alloc_mw` is absent otherwise.
        let alloc = unsafe { (*(*pd.ptr()).context).ops.alloc_mw };
        let Some(alloc) = alloc else {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        };
        // SAFETY: the provider's own call, on a live domain.
        let mw = unsafe { alloc(pd.ptr(), sys::ibv_mw_type::IBV_MW_TYPE_2) };
        let mw = NonNull::new(mw).ok_or_else(super::last)?;
        // SAFETY: a live window; a plain number is read.
        let rkey = unsafe { (*mw.as_ptr()).rkey };
        Ok(Window { mw, key: next_key(rkey), bound: None, _pd: Arc::clone(pd) })
    }

    /// The key that the window's bind gives it.
    pub(in super::super) fn key(&self) -> u32 {
        self.key
    }

    pub(super) fn ptr(&self) -> *mut sys::ibv_mw {
        self.mw.as_ptr()
    }

    /// Records that the device has closed it at the peer's request. It can be bound again, with another
    /// key.
    pub(in super::super) fn was_closed(&mut self) {
        // SAFETY: a live window, which no other code uses (`&mut`); a plain number is written.
        // A bind names the window by the key that its last bind gave it.
        unsafe { (*self.mw.as_ptr()).rkey = self.key };
        self.key = next_key(self.key);
        self.bound = None;
    }

    /// Records the registration that a posted bind binds it to.
    pub(in super::super) fn bind_to(&mut self, mr: &Arc<Registration>) {
        self.bound = Some(Arc::clone(mr));
    }
}

/// As `ibv_inc_rkey` (which overflows in the binding for the key 0xffffffff).
fn next_key(rkey: u32) -> u32 {
    rkey & !0xff | rkey.wrapping_add(1) & 0xff
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: a live window; `dealloc_mw` is there, as `alloc_mw` was.
        if let Some(dealloc) = unsafe { (*(*self.mw.as_ptr()).context).ops.dealloc_mw } {
            // SAFETY: ours, freed once, before what it is bound to.
            unsafe { dealloc(self.mw.as_ptr()) };
        }
    }
}

/// A shared receive queue.
pub(in super::super) struct SharedQueue {
    srq: NonNull<sys::ibv_srq>,
    _pd: Arc<Domain>,
}

// SAFETY: see `Domain`.
unsafe impl Send for SharedQueue {}
// SAFETY: see `Domain`.
unsafe impl Sync for SharedQueue {}

impl SharedQueue {
    pub(in super::super) fn new(
        pd: &Arc<Domain>,
        max_wr: u32,
        max_sge: u32,
    ) -> io::Result<Arc<SharedQueue>> {
        let mut attr = sys::ibv_srq_init_attr {
            srq_context: std::ptr::null_mut(),
            attr: sys::ibv_srq_attr { max_wr, max_sge, srq_limit: 0 },
        };
        Profile::current().create_srq()?;
        super::forget_last();
        // SAFETY: a live domain, and an initialised structure.
        let srq = unsafe { sys::ibv_create_srq(pd.ptr(), &raw mut attr) };
        match NonNull::new(srq) {
            Some(srq) => Ok(Arc::new(SharedQueue { srq, _pd: Arc::clone(pd) })),
            None => Err(super::last()),
        }
    }

    pub(super) fn ptr(&self) -> *mut sys::ibv_srq {
        self.srq.as_ptr()
    }

    /// Posts a receive.
    pub(in super::super) fn post(&self, wr_id: u64, sges: &[HwSge]) -> io::Result<()> {
        // SAFETY: a live SRQ, of whose device this is the post call.
        let Some(post) = (unsafe { (*(*self.ptr()).context).ops.post_srq_recv }) else {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        };
        super::post::recv(wr_id, sges, |wr, bad| {
            // SAFETY: a live SRQ; the request is well-formed for the time of the call.
            unsafe { post(self.ptr(), wr, bad) }
        })
    }
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        // SAFETY: ours; QPs on it hold it by its `Arc`.
        let ret = unsafe { sys::ibv_destroy_srq(self.srq.as_ptr()) };
        debug_assert_eq!(ret, 0, "ibv_destroy_srq");
    }
}
