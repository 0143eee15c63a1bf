//! Protection domains, registrations, queues: life, misuse, limits.

use std::collections::HashSet;

use exs::mem::{Access, AccessFault, Region};
use exs::rnic::{Qp, QpAttr, QpState, RecvWr, Rnic, RnicError, SendOp, SendWr};

use super::skip;
use super::world::{End, Harness, World, read_wr, send_wr, write_wr};

/// A registration's key serves until it is deregistered, and then no more.
pub fn memory_regions_live_and_die<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let buf = w.zeros(p.a, 64);
    w.recv(p.a, 1, &[buf.part(0, 8)]);
    w.send(p.b, &SendWr { head: b"8 bytes.", ..send_wr(1, &[]) });
    assert_eq!(w.received(p.a).byte_len, 8);
    assert!(w.rnics[0].dealloc_pd(p.a.pd).is_err(), "in use");
    w.rnics[0].dereg_mr(buf.mr).unwrap();
    let gone = w.rnics[0].post_recv(p.a.qp, &RecvWr { wr_id: 2, sges: &[buf.sge()] });
    assert_eq!(
        gone,
        Err(RnicError::Memory(AccessFault::InvalidKey { key: buf.mr.key })),
        "a dead key"
    );
    assert!(w.rnics[0].dereg_mr(buf.mr).is_err(), "twice");
}

/// Keys look random, are never zero, and revoked ones do not come back at once.
pub fn keys_are_random_and_rest<H: Harness>() {
    let mut w = World::<H>::new(1);
    if !w.caps(0).random_keys {
        return skip("this device numbers its keys");
    }
    let pd = w.rnics[0].alloc_pd().unwrap();
    let region = Region::from_vec(vec![0; 64]);
    let segment = region.segment(0, 64).unwrap();
    let mut keys = Vec::new();
    for _ in 0..1000 {
        let mr = w.rnics[0].reg_mr(pd, &segment, Access::ALL).unwrap();
        keys.push(mr.key);
        w.rnics[0].dereg_mr(mr).unwrap();
    }
    let unique: HashSet<u32> = keys.iter().copied().collect();
    assert_eq!(unique.len(), keys.len(), "a revoked key came back");
    assert!(!unique.contains(&0));
    let steps: HashSet<u32> = keys.windows(2).map(|k| k[1].wrapping_sub(k[0])).collect();
    assert!(steps.len() > 900, "{} different steps from key to key", steps.len());
}

/// Objects that do not exist, or do not belong together, are refused.
pub fn misuse_is_refused<H: Harness>() {
    let mut w = World::<H>::new(1);
    let (x, y) = (w.end(0), w.end(0));
    let no =
        |r: Result<(), RnicError>| assert!(matches!(r, Err(RnicError::NoSuch { .. })), "{r:?}");
    no(w.rnics[0].destroy_qp(Qp(999_999)));
    no(w.rnics[0].post_recv(Qp(999_999), &RecvWr { wr_id: 0, sges: &[] }));
    w.rnics[0].destroy_qp(x.qp).unwrap();
    no(w.rnics[0].destroy_qp(x.qp));
    no(w.rnics[0].qp_state(x.qp).map(drop));
    no(w.rnics[0].addrs(x.qp).map(drop));
    w.rnics[0].destroy_cq(x.scq).unwrap();
    no(w.rnics[0].destroy_cq(x.scq));
    no(w.rnics[0].arm_cq(x.scq));
    let attr = QpAttr {
        pd: y.pd,
        send_cq: x.scq,
        recv_cq: y.rcq,
        srq: None,
        max_send_wr: 1,
        max_recv_wr: 1,
        context: 0,
    };
    no(w.rnics[0].create_qp(&attr).map(drop));
    w.rnics[0].dealloc_pd(x.pd).unwrap();
    no(w.rnics[0].dealloc_pd(x.pd));
    // An SRQ of another domain.
    let pd = w.rnics[0].alloc_pd().unwrap();
    let srq = w.rnics[0].create_srq(pd, 4).unwrap();
    let attr = QpAttr { send_cq: y.scq, srq: Some(srq), ..attr };
    assert!(w.rnics[0].create_qp(&attr).is_err());
    // A QP on an SRQ takes no receives of its own.
    let z = w.end_in(0, pd, Some(srq));
    assert!(w.rnics[0].post_recv(z.qp, &RecvWr { wr_id: 0, sges: &[] }).is_err());
}

/// An object in use by another cannot be destroyed; afterwards it can.
pub fn objects_in_use_stay<H: Harness>() {
    let mut w = World::<H>::new(1);
    let pd = w.rnics[0].alloc_pd().unwrap();
    let srq = w.rnics[0].create_srq(pd, 4).unwrap();
    let end = w.end_in(0, pd, Some(srq));
    let busy =
        |r: Result<(), RnicError>| assert!(matches!(r, Err(RnicError::Busy { .. })), "{r:?}");
    busy(w.rnics[0].destroy_cq(end.scq));
    busy(w.rnics[0].destroy_cq(end.rcq));
    busy(w.rnics[0].destroy_srq(srq));
    busy(w.rnics[0].dealloc_pd(pd));
    w.rnics[0].destroy_qp(end.qp).unwrap();
    busy(w.rnics[0].dealloc_pd(pd));
    w.rnics[0].destroy_srq(srq).unwrap();
    w.rnics[0].destroy_cq(end.scq).unwrap();
    w.rnics[0].destroy_cq(end.rcq).unwrap();
    w.rnics[0].dealloc_pd(pd).unwrap();
}

/// A call over a limit, or for something that the RNIC cannot do at all, is refused with the number.
pub fn limits_are_told<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let caps = w.rnics[0].caps().clone();
    let buf = w.zeros(p.a, 64);
    let many = vec![buf.part(0, 1); caps.max_sge + 1];
    let limit = |r: Result<(), RnicError>| match r {
        Err(RnicError::Limit { asked, limit, .. }) => assert!(asked > limit),
        other => panic!("{other:?}"),
    };
    limit(w.rnics[0].post_send(p.a.qp, &send_wr(1, &many)));
    limit(w.rnics[0].post_recv(p.a.qp, &RecvWr { wr_id: 1, sges: &many }));
    let head = vec![0; caps.max_inline + 1];
    limit(w.rnics[0].post_send(p.a.qp, &SendWr { head: &head, ..send_wr(1, &[]) }));
    if caps.read_sink_remote_write {
        limit(w.rnics[0].post_send(p.a.qp, &read_wr(1, &many[..2], 0, 1)));
    }
    if !caps.write_imm {
        let op = SendOp::WriteImm { raddr: 0, rkey: 1, imm: 7 };
        let r = w.rnics[0].post_send(p.a.qp, &SendWr { op, ..send_wr(1, &[]) });
        assert!(matches!(r, Err(RnicError::Unsupported(_))), "{r:?}");
    }
    // A READ has nothing to send along.
    let r = w.rnics[0].post_send(p.a.qp, &SendWr { head: b"x", ..read_wr(1, &[buf.sge()], 0, 1) });
    assert!(r.is_err());
    // Right up to the limits it works.
    let src = vec![buf.part(3, 1); caps.max_sge];
    // A single segment has the head and the payload.
    let head = vec![7; caps.max_inline - usize::from(caps.max_sge == 1)];
    let dst = w.zeros(p.b, head.len() + caps.max_sge);
    w.recv(p.b, 1, &[dst.sge()]);
    w.send(p.a, &SendWr { head: &head, ..send_wr(1, &src) });
    assert_eq!(w.received(p.b).byte_len, (head.len() + caps.max_sge) as u64);
    let len = buf.region.len() as u64;
    let _ = write_wr(1, &[], len, 0);
    assert_eq!(w.rnics[0].qp_state(p.a.qp), Ok(QpState::Rts));
}

fn notified<H: Harness>(w: &World<H>, end: End) -> usize {
    w.notified[end.node].iter().filter(|cq| **cq == end.rcq).count()
}

/// An armed CQ notifies for the next completion, once; one not armed never does.
pub fn a_cq_notifies_once_per_arming<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let message = |w: &mut World<H>| {
        w.recv(p.b, 1, &[]);
        w.send(p.a, &SendWr { signaled: false, ..send_wr(1, &[]) });
    };
    message(&mut w);
    w.received(p.b);
    w.settle();
    assert_eq!(notified(&w, p.b), 0, "never armed");
    w.rnics[1].arm_cq(p.b.rcq).unwrap();
    w.settle();
    assert_eq!(notified(&w, p.b), 0, "nothing new");
    message(&mut w);
    message(&mut w);
    w.received(p.b);
    w.received(p.b);
    w.settle();
    assert_eq!(notified(&w, p.b), 1, "armed once");
    w.rnics[1].arm_cq(p.b.rcq).unwrap();
    message(&mut w);
    w.received(p.b);
    w.settle();
    assert_eq!(notified(&w, p.b), 2);
}
