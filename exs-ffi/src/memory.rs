//! Memory of the program: registrations, and buffers from an address and a length.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use exs::__ffi::{self as raw, SpareBuffer};
use exs::{Buffer, MemoryRegion};
use libc::c_void;

use crate::abi::{EXS_MHANDLE_UNREGISTERED, EXS_MRF_SHARED, EXS_MRF_UNMAPPED};
use crate::error::{Fail, Result, border};
use crate::fork;
use crate::handles::Handles;
use crate::ptr::{Bytes, Out};
use crate::recent::Recent;

/// A registration. A device learns of it when an operation first uses it there.
struct Registration {
    region: MemoryRegion,
    base: usize,
    len: usize,
}

thread_local! {
    static FOUND: RefCell<Recent<Registration>> = const { Recent::new() };
    /// What the buffer of the thread's last call was made of.
    static SPARE: Cell<Option<SpareBuffer>> = const { Cell::new(None) };
}

static TABLE: Handles<Registration> = Handles::new(&FOUND);

/// Checks a range; None if it is empty.
fn range(memory: Bytes, len: usize) -> Result<Option<NonNull<u8>>> {
    if len == 0 {
        return Ok(None);
    }
    let Some(base) = NonNull::new(memory.raw().cast::<u8>()) else {
        return Err(Fail::fixed(libc::EFAULT, "the memory is at NULL"));
    };
    let end = base.addr().get().checked_add(len);
    if end.is_none() || isize::try_from(len).is_err() {
        return Err(Fail::fixed(
            libc::EFAULT,
            "the memory goes beyond the end of the address space",
        ));
    }
    Ok(Some(base))
}

/// The buffer for an operation, over memory with or without a registration.
pub(crate) fn buffer(memory: Bytes, len: usize, mhandle: c_int) -> Result<Buffer> {
    let base = range(memory, len)?;
    if mhandle == EXS_MHANDLE_UNREGISTERED {
        let base = base.unwrap_or(NonNull::dangling());
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        return Ok(match spare {
            // SAFETY: the caller promises that the memory is there until the event, and left
            // alone as the header says (essay of `ptr`).
            Some(spare) => unsafe { spare.over(base, len) },
            // SAFETY: as above.
            None => unsafe { raw::buffer(base, len) },
        });
    }
    let part = TABLE.get(mhandle).map(|r| {
        let offset = base.map_or(Some(0), |b| b.addr().get().checked_sub(r.base));
        // SAFETY: as above.
        unsafe { raw::part(&r.region, offset.unwrap_or(usize::MAX), len) }
    });
    match part {
        Some(Ok(part)) => Ok(part),
        Some(Err(e)) => Err(e.into()),
        None => Err(Fail::fixed(
            libc::EINVAL,
            "this is not the handle of a registration (EXS_MHANDLE_UNREGISTERED is for memory without)",
        )),
    }
}

/// Ends the use of a buffer by a call that is over. The thread's next buffer is made of it.
pub(crate) fn end(buffer: Buffer) {
    if let Some(spare) = SpareBuffer::of(buffer) {
        // A thread that ends keeps nothing.
        let _ = SPARE.try_with(|kept| kept.set(Some(spare)));
    }
}

/// Checks the memory and the handle of a call that needs no buffer, but touches the memory.
pub(crate) fn check(memory: Bytes, len: usize, mhandle: c_int) -> Result<()> {
    if mhandle == EXS_MHANDLE_UNREGISTERED {
        return range(memory, len).map(|_| ());
    }
    match buffer(memory, len, mhandle)?.is_mapped() {
        true => Ok(()),
        false => Err(exs::Error::Memory(exs::MemError::Unmapped).into()),
    }
}

/// True if all pages of the range are mapped.
fn is_mapped(base: usize, len: usize) -> bool {
    // SAFETY: takes no pointers.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let mut seen = [0u8; 1024];
    let mut at = base & !(page - 1);
    let end = base + len;
    while at < end {
        let stretch = (end - at).min(seen.len() * page);
        // SAFETY: has room for what 1024 pages take, and looks at the map only; the
        // memory itself is not touched.
        if unsafe { libc::mincore(at as *mut c_void, stretch, seen.as_mut_ptr()) } != 0 {
            return false;
        }
        at += stretch;
    }
    true
}

/// `exs_mregister`
///
/// # Safety
/// As the header says: the memory is the operations' that are given the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_mregister(memory: Bytes, len: usize, flags: c_int) -> c_int {
    border(|| {
        fork::used();
        if flags & !EXS_MRF_SHARED != 0 {
            return Err(Fail::fixed(
                libc::EINVAL,
                "exs_mregister knows the flag EXS_MRF_SHARED only",
            ));
        }
        let base = range(memory, len)?
            .ok_or(Fail::fixed(libc::EINVAL, "a registration needs at least one byte"))?;
        if !is_mapped(base.addr().get(), len) {
            return Err(Fail::fixed(libc::EFAULT, "not all of this memory is mapped"));
        }
        // SAFETY: the caller promises that the memory stays until the registration and
        // its operations have ended.
        let region = unsafe { raw::region(base, len) };
        let made = TABLE.insert(Registration { region, base: base.addr().get(), len });
        made.ok_or(Fail::fixed(libc::ENOMEM, "too many registrations: deregister some"))
    })
}

/// `exs_mregister_dmabuf`
///
/// # Safety
/// As the header says: the memory is the operations' that are given the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_mregister_dmabuf(
    fd: c_int,
    offset: u64,
    len: usize,
    flags: c_int,
    addr: Out<*mut c_void>,
) -> c_int {
    border(|| {
        fork::used();
        if flags & !EXS_MRF_UNMAPPED != 0 {
            let why = "exs_mregister_dmabuf knows the flag EXS_MRF_UNMAPPED only";
            return Err(Fail::fixed(libc::EINVAL, why));
        }
        addr.check()?;
        if fd < 0 {
            return Err(Fail::fixed(libc::EBADF, "this is no descriptor"));
        }
        // SAFETY: not -1; if it is closed, the duplication says so.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let fd = fd.try_clone_to_owned().map_err(|e| Fail::io("the descriptor", &e))?;
        // SAFETY: the caller promises that the memory is the operations' until their events.
        let region = unsafe { MemoryRegion::from_dmabuf(fd, offset, len) };
        let region = region.map_err(exs::Error::Memory)?;
        if !region.is_mapped() && flags & EXS_MRF_UNMAPPED == 0 {
            return Err(exs::Error::Memory(exs::MemError::Unmapped).into());
        }
        let base = raw::address(&region);
        addr.write(std::ptr::without_provenance_mut(base))?;
        let made = TABLE.insert(Registration { region, base, len });
        made.ok_or(Fail::fixed(libc::ENOMEM, "too many registrations: deregister some"))
    })
}

/// `exs_mderegister`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_mderegister(mhandle: c_int) -> c_int {
    border(|| {
        let gone = TABLE.remove_if(mhandle, |_| Ok::<(), Fail>(()))?;
        let gone =
            gone.ok_or(Fail::fixed(libc::EINVAL, "this is not the handle of a registration"))?;
        debug_assert!(gone.len > 0);
        Ok(0)
    })
}
