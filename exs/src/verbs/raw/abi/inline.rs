//! The functions that the headers of rdma-core define inline.
//!
//! A provider fills a table of functions in each context. The headers' functions call through it.
//! Newer calls lie in a larger structure (`verbs_context`) around the context. A mark in the context
//! says that it has that structure. A size says how much of it: older libraries have a shorter one.

use std::mem::offset_of;
use std::os::raw::c_int;

use super::bindings as sys;

/// `__VERBS_ABI_IS_EXTENDED`: the mark of a context that lies in a `verbs_context`.
const EXTENDED: usize = usize::MAX;

/// Polls a completion queue: `ibv_poll_cq(3)`.
///
/// # Safety
/// A live queue, and room for `entries` completions at `wc`.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut sys::ibv_cq, entries: c_int, wc: *mut sys::ibv_wc) -> c_int {
    // SAFETY: a live queue has its context, and each provider has this call.
    match unsafe { (*(*cq).context).ops.poll_cq } {
        // SAFETY: the caller's promise.
        Some(poll) => unsafe { poll(cq, entries, wc) },
        None => -libc::EOPNOTSUPP,
    }
}

/// Asks for a notification of the next completion: `ibv_req_notify_cq(3)`.
///
/// # Safety
/// A live queue.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut sys::ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: a live queue has its context.
    match unsafe { (*(*cq).context).ops.req_notify_cq } {
        // SAFETY: the caller's promise.
        Some(request) => unsafe { request(cq, solicited_only) },
        None => libc::EOPNOTSUPP,
    }
}

/// The extended structure around a context, if it has one that reaches `field_at`, the offset of a
/// field in it.
///
/// # Safety
/// A live context.
unsafe fn extended(
    context: *mut sys::ibv_context,
    field_at: usize,
) -> Option<*mut sys::verbs_context> {
    // SAFETY: a live context; a pointer is read.
    if unsafe { (*context).abi_compat }.addr() != EXTENDED {
        return None;
    }
    let outer = context.wrapping_byte_sub(offset_of!(sys::verbs_context, context));
    let outer = outer.cast::<sys::verbs_context>();
    // SAFETY: the mark says that the context lies in such a structure. `sz` is right before the
    // context in every version of it.
    let size = unsafe { (*outer).sz };
    // The structure grows at its front. So `sz` bytes before its end are there.
    (size >= size_of::<sys::verbs_context>() - field_at).then_some(outer)
}

/// The attributes of a port: the call that the macro `ibv_query_port` stands for.
///
/// # Safety
/// A live context, and a structure at `attr` of which all bytes are zero.
pub unsafe fn ___ibv_query_port(
    context: *mut sys::ibv_context,
    port: u8,
    attr: *mut sys::ibv_port_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    let outer = unsafe { extended(context, offset_of!(sys::verbs_context, query_port)) };
    // SAFETY: the structure reaches this field.
    if let Some(query) = outer.and_then(|outer| unsafe { (*outer).query_port }) {
        // SAFETY: the provider writes as many bytes as it is told.
        return unsafe { query(context, port, attr, size_of::<sys::ibv_port_attr>()) };
    }
    // SAFETY: the older structure is the beginning of the newer.
    unsafe { sys::ibv_query_port(context, port, attr.cast()) }
}

/// The attributes of a device: `ibv_query_device_ex(3)`.
///
/// # Safety
/// A live context, null or a structure at `input`, and a structure at `attr` of which all bytes are
/// zero.
pub unsafe fn ibv_query_device_ex(
    context: *mut sys::ibv_context,
    input: *const sys::ibv_query_device_ex_input,
    attr: *mut sys::ibv_device_attr_ex,
) -> c_int {
    // SAFETY: the caller's promise.
    let outer = unsafe { extended(context, offset_of!(sys::verbs_context, query_device_ex)) };
    // SAFETY: the structure reaches this field.
    if let Some(query) = outer.and_then(|outer| unsafe { (*outer).query_device_ex }) {
        // SAFETY: the provider writes as many bytes as it is told.
        let ret = unsafe { query(context, input, attr, size_of::<sys::ibv_device_attr_ex>()) };
        if ret != libc::EOPNOTSUPP {
            return ret;
        }
    }
    // SAFETY: in bounds of the structure.
    unsafe { sys::ibv_query_device(context, &raw mut (*attr).orig_attr) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;
    use std::ptr;

    const PROVIDER_PORT: u32 = 4;
    const PROVIDER_FLAGS: u64 = 77;

    /// A context as a provider makes it: all zero, but for what a test sets.
    fn provider() -> Box<sys::verbs_context> {
        // SAFETY: numbers, pointers, and optional functions: all bits zero are valid.
        let mut outer: Box<sys::verbs_context> =
            Box::new(unsafe { MaybeUninit::zeroed().assume_init() });
        outer.sz = size_of::<sys::verbs_context>();
        outer.context.abi_compat = ptr::without_provenance_mut(EXTENDED);
        outer
    }

    fn context(outer: &mut sys::verbs_context) -> *mut sys::ibv_context {
        // The functions go back from the context to the structure around it, so the pointer must be
        // one to the whole.
        let at = offset_of!(sys::verbs_context, context);
        (&raw mut *outer).wrapping_byte_add(at).cast()
    }

    unsafe extern "C" fn query_port(
        _context: *mut sys::ibv_context,
        port: u8,
        attr: *mut sys::ibv_port_attr,
        size: usize,
    ) -> c_int {
        assert_eq!((port, size), (1, size_of::<sys::ibv_port_attr>()));
        // SAFETY: a zeroed structure of the test.
        unsafe { (*attr).state = PROVIDER_PORT };
        0
    }

    unsafe extern "C" fn query_device_ex(
        _context: *mut sys::ibv_context,
        _input: *const sys::ibv_query_device_ex_input,
        attr: *mut sys::ibv_device_attr_ex,
        size: usize,
    ) -> c_int {
        assert_eq!(size, size_of::<sys::ibv_device_attr_ex>());
        // SAFETY: a zeroed structure of the test.
        unsafe { (*attr).odp_caps.general_caps = PROVIDER_FLAGS };
        0
    }

    unsafe extern "C" fn poll_cq(_: *mut sys::ibv_cq, n: c_int, wc: *mut sys::ibv_wc) -> c_int {
        // SAFETY: room for `n` completions of the test.
        unsafe { (*wc).wr_id = 7 };
        n
    }

    unsafe extern "C" fn req_notify_cq(_: *mut sys::ibv_cq, solicited_only: c_int) -> c_int {
        solicited_only
    }

    #[test]
    fn the_calls_of_a_queue_go_through_its_contexts_table() {
        let mut outer = provider();
        // SAFETY: as for the context.
        let mut cq: sys::ibv_cq = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut wc = MaybeUninit::<sys::ibv_wc>::zeroed();
        cq.context = context(&mut outer);
        // SAFETY: a queue of the test, whose context lacks the calls.
        let lacking = unsafe {
            (ibv_poll_cq(&raw mut cq, 1, wc.as_mut_ptr()), ibv_req_notify_cq(&raw mut cq, 1))
        };
        assert_eq!(lacking, (-libc::EOPNOTSUPP, libc::EOPNOTSUPP));
        outer.context.ops.poll_cq = Some(poll_cq);
        outer.context.ops.req_notify_cq = Some(req_notify_cq);
        cq.context = context(&mut outer);
        // SAFETY: a queue of the test, with the calls.
        let found = unsafe { ibv_poll_cq(&raw mut cq, 1, wc.as_mut_ptr()) };
        // SAFETY: zeroed, then written.
        assert_eq!((found, unsafe { wc.assume_init_ref() }.wr_id), (1, 7));
        // SAFETY: as above.
        assert_eq!(unsafe { ibv_req_notify_cq(&raw mut cq, 1) }, 1);
    }

    #[test]
    fn queries_go_to_the_provider_that_has_them() {
        let mut outer = provider();
        outer.query_port = Some(query_port);
        outer.query_device_ex = Some(query_device_ex);
        let mut port = MaybeUninit::<sys::ibv_port_attr>::zeroed();
        let mut device = MaybeUninit::<sys::ibv_device_attr_ex>::zeroed();
        let context = context(&mut outer);
        // SAFETY: a context of the test, and zeroed structures.
        assert_eq!(unsafe { ___ibv_query_port(context, 1, port.as_mut_ptr()) }, 0);
        // SAFETY: as above.
        let ret = unsafe { ibv_query_device_ex(context, ptr::null(), device.as_mut_ptr()) };
        assert_eq!(ret, 0);
        // SAFETY: zeroed, then written.
        assert_eq!(unsafe { port.assume_init() }.state, PROVIDER_PORT);
        // SAFETY: zeroed, then written.
        let flags = unsafe { device.assume_init() }.odp_caps.general_caps;
        assert_eq!(flags, PROVIDER_FLAGS);
    }

    #[test]
    fn a_context_of_an_older_library_has_less() {
        let mut outer = provider();
        let at = |field: usize, outer: &mut sys::verbs_context| {
            // SAFETY: a context of the test.
            unsafe { extended(context(outer), field) }.is_some()
        };
        let (port, device) = (
            offset_of!(sys::verbs_context, query_port),
            offset_of!(sys::verbs_context, query_device_ex),
        );
        assert!(at(port, &mut outer) && at(device, &mut outer));
        // `query_port` is the newest: the first one in memory.
        outer.sz = size_of::<sys::verbs_context>() - device;
        assert!(!at(port, &mut outer) && at(device, &mut outer));
        outer.context.abi_compat = ptr::null_mut();
        assert!(!at(device, &mut outer), "a context without the mark");
    }
}
