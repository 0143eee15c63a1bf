//! Declarations of libibverbs and librdmacm, made of those of rdma-sys by `make bindings`. Do not
//! edit: `make check-bindings` compares this file with a new one.
//!
//! They are the same on x86-64 and aarch64: what differs there are the types of libc.

pub type Uncalled = Option<unsafe extern "C" fn()>;
pub type __be16 = __u16;
pub type __be32 = __u32;
pub type __be64 = __u64;
pub type __u16 = libc::c_ushort;
pub type __u32 = libc::c_uint;
pub type __u64 = libc::c_ulonglong;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct _ibv_device_ops {
    pub _dummy1: Uncalled,
    pub _dummy2: Uncalled,
}
#[repr(C)]
pub union addr_union_t {
    pub ibaddr: rdma_ib_addr,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct atomic_t {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bind_mw_t {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}
#[repr(C)]
pub union bind_mw_tso_union_t {
    pub bind_mw: bind_mw_t,
    pub tso: tso_t,
}
#[repr(C)]
pub union dst_addr_union_t {
    pub dst_addr: libc::sockaddr,
    pub dst_sin: libc::sockaddr_in,
    pub dst_sin6: libc::sockaddr_in6,
    pub dst_storage: libc::sockaddr_storage,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}
#[repr(C)]
pub struct ibv_async_event {
    pub element: ibv_async_event_element_t,
    pub event_type: ibv_event_type,
}
#[repr(C)]
pub union ibv_async_event_element_t {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub wq: *mut ibv_wq,
    pub port_num: libc::c_int,
}
pub mod ibv_atomic_cap {
    pub type Type = libc::c_uint;
    pub const IBV_ATOMIC_HCA: Type = 1;
    pub const IBV_ATOMIC_GLOB: Type = 2;
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: libc::c_int,
    pub refcnt: libc::c_int,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: libc::c_int,
    pub async_fd: libc::c_int,
    pub num_comp_vectors: libc::c_int,
    pub mutex: libc::pthread_mutex_t,
    pub abi_compat: *mut libc::c_void,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_context_ops {
    pub _compat_query_device: Uncalled,
    pub _compat_query_port: Uncalled,
    pub _compat_alloc_pd: Uncalled,
    pub _compat_dealloc_pd: Uncalled,
    pub _compat_reg_mr: Uncalled,
    pub _compat_rereg_mr: Uncalled,
    pub _compat_dereg_mr: Uncalled,
    pub alloc_mw:
        Option<unsafe extern "C" fn(pd: *mut ibv_pd, type_: ibv_mw_type::Type) -> *mut ibv_mw>,
    pub bind_mw: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            mw: *mut ibv_mw,
            mw_bind: *mut ibv_mw_bind,
        ) -> libc::c_int,
    >,
    pub dealloc_mw: Option<unsafe extern "C" fn(mw: *mut ibv_mw) -> libc::c_int>,
    pub _compat_create_cq: Uncalled,
    pub poll_cq: Option<
        unsafe extern "C" fn(
            cq: *mut ibv_cq,
            num_entries: libc::c_int,
            wc: *mut ibv_wc,
        ) -> libc::c_int,
    >,
    pub req_notify_cq:
        Option<unsafe extern "C" fn(cq: *mut ibv_cq, solicited_only: libc::c_int) -> libc::c_int>,
    pub _compat_cq_event: Uncalled,
    pub _compat_resize_cq: Uncalled,
    pub _compat_destroy_cq: Uncalled,
    pub _compat_create_srq: Uncalled,
    pub _compat_modify_srq: Uncalled,
    pub _compat_query_srq: Uncalled,
    pub _compat_destroy_srq: Uncalled,
    pub post_srq_recv: Option<
        unsafe extern "C" fn(
            srq: *mut ibv_srq,
            recv_wr: *mut ibv_recv_wr,
            bad_recv_wr: *mut *mut ibv_recv_wr,
        ) -> libc::c_int,
    >,
    pub _compat_create_qp: Uncalled,
    pub _compat_query_qp: Uncalled,
    pub _compat_modify_qp: Uncalled,
    pub _compat_destroy_qp: Uncalled,
    pub post_send: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_send_wr,
            bad_wr: *mut *mut ibv_send_wr,
        ) -> libc::c_int,
    >,
    pub post_recv: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_recv_wr,
            bad_wr: *mut *mut ibv_recv_wr,
        ) -> libc::c_int,
    >,
    pub _compat_create_ah: Uncalled,
    pub _compat_destroy_ah: Uncalled,
    pub _compat_attach_mcast: Uncalled,
    pub _compat_detach_mcast: Uncalled,
    pub _compat_async_event: Uncalled,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut libc::c_void,
    pub handle: u32,
    pub cqe: libc::c_int,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_cq_moderation_caps {
    pub max_cq_count: u16,
    pub max_cq_period: u16,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_device {
    pub _ops: _ibv_device_ops,
    pub node_type: ibv_node_type::Type,
    pub transport_type: ibv_transport_type::Type,
    pub name: [libc::c_char; 64usize],
    pub dev_name: [libc::c_char; 64usize],
    pub dev_path: [libc::c_char; 256usize],
    pub ibdev_path: [libc::c_char; 256usize],
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_device_attr {
    pub fw_ver: [libc::c_char; 64usize],
    pub node_guid: __be64,
    pub sys_image_guid: __be64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: libc::c_int,
    pub max_qp_wr: libc::c_int,
    pub device_cap_flags: libc::c_uint,
    pub max_sge: libc::c_int,
    pub max_sge_rd: libc::c_int,
    pub max_cq: libc::c_int,
    pub max_cqe: libc::c_int,
    pub max_mr: libc::c_int,
    pub max_pd: libc::c_int,
    pub max_qp_rd_atom: libc::c_int,
    pub max_ee_rd_atom: libc::c_int,
    pub max_res_rd_atom: libc::c_int,
    pub max_qp_init_rd_atom: libc::c_int,
    pub max_ee_init_rd_atom: libc::c_int,
    pub atomic_cap: ibv_atomic_cap::Type,
    pub max_ee: libc::c_int,
    pub max_rdd: libc::c_int,
    pub max_mw: libc::c_int,
    pub max_raw_ipv6_qp: libc::c_int,
    pub max_raw_ethy_qp: libc::c_int,
    pub max_mcast_grp: libc::c_int,
    pub max_mcast_qp_attach: libc::c_int,
    pub max_total_mcast_qp_attach: libc::c_int,
    pub max_ah: libc::c_int,
    pub max_fmr: libc::c_int,
    pub max_map_per_fmr: libc::c_int,
    pub max_srq: libc::c_int,
    pub max_srq_wr: libc::c_int,
    pub max_srq_sge: libc::c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_device_attr_ex {
    pub orig_attr: ibv_device_attr,
    pub comp_mask: u32,
    pub odp_caps: ibv_odp_caps,
    pub completion_timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub tso_caps: ibv_tso_caps,
    pub rss_caps: ibv_rss_caps,
    pub max_wq_type_rq: u32,
    pub packet_pacing_caps: ibv_packet_pacing_caps,
    pub raw_packet_caps: u32,
    pub tm_caps: ibv_tm_caps,
    pub cq_mod_caps: ibv_cq_moderation_caps,
    pub max_dm_size: u64,
    pub pci_atomic_caps: ibv_pci_atomic_caps,
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct ibv_device_cap_flags(pub libc::c_uint);
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_MEM_WINDOW_TYPE_2A: ibv_device_cap_flags = ibv_device_cap_flags(8388608);
    pub const IBV_DEVICE_MEM_WINDOW_TYPE_2B: ibv_device_cap_flags = ibv_device_cap_flags(16777216);
}
pub type ibv_event_type = libc::c_uint;
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_gid {
    pub raw: [u8; 16],
    pub global: ibv_gid_global_t,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_gid_global_t {
    pub subnet_prefix: __be64,
    pub interface_id: __be64,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}
pub mod ibv_mig_state {
    pub type Type = libc::c_uint;
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut libc::c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}
pub mod ibv_mtu {
    pub type Type = libc::c_uint;
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    pub type_: ibv_mw_type::Type,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: libc::c_uint,
}
pub mod ibv_mw_type {
    pub type Type = libc::c_uint;
    pub const IBV_MW_TYPE_2: Type = 2;
}
pub mod ibv_node_type {
    pub type Type = libc::c_int;
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_odp_caps {
    pub general_caps: u64,
    pub per_transport_caps: ibv_odp_caps__bindgen_ty_1,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_odp_caps__bindgen_ty_1 {
    pub rc_odp_caps: u32,
    pub uc_odp_caps: u32,
    pub ud_odp_caps: u32,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_packet_pacing_caps {
    pub qp_rate_limit_min: u32,
    pub qp_rate_limit_max: u32,
    pub supported_qpts: u32,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_pci_atomic_caps {
    pub fetch_add: u16,
    pub swap: u16,
    pub compare_swap: u16,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_port_attr {
    pub state: ibv_port_state::Type,
    pub max_mtu: ibv_mtu::Type,
    pub active_mtu: ibv_mtu::Type,
    pub gid_tbl_len: libc::c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}
pub mod ibv_port_state {
    pub type Type = libc::c_uint;
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut libc::c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: ibv_qp_state::Type,
    pub qp_type: ibv_qp_type::Type,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
}
#[repr(C)]
pub struct ibv_qp_attr {
    pub qp_state: ibv_qp_state::Type,
    pub cur_qp_state: ibv_qp_state::Type,
    pub path_mtu: ibv_mtu::Type,
    pub path_mig_state: ibv_mig_state::Type,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: libc::c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct ibv_qp_attr_mask(pub libc::c_uint);
impl ibv_qp_attr_mask {
    pub const IBV_QP_STATE: ibv_qp_attr_mask = ibv_qp_attr_mask(1);
    pub const IBV_QP_PKEY_INDEX: ibv_qp_attr_mask = ibv_qp_attr_mask(16);
    pub const IBV_QP_AV: ibv_qp_attr_mask = ibv_qp_attr_mask(128);
    pub const IBV_QP_PATH_MTU: ibv_qp_attr_mask = ibv_qp_attr_mask(256);
    pub const IBV_QP_TIMEOUT: ibv_qp_attr_mask = ibv_qp_attr_mask(512);
    pub const IBV_QP_RETRY_CNT: ibv_qp_attr_mask = ibv_qp_attr_mask(1024);
    pub const IBV_QP_RNR_RETRY: ibv_qp_attr_mask = ibv_qp_attr_mask(2048);
    pub const IBV_QP_MIN_RNR_TIMER: ibv_qp_attr_mask = ibv_qp_attr_mask(32768);
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut libc::c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: ibv_qp_type::Type,
    pub sq_sig_all: libc::c_int,
}
pub mod ibv_qp_state {
    pub type Type = libc::c_uint;
    pub const IBV_QPS_ERR: Type = 6;
}
pub mod ibv_qp_type {
    pub type Type = libc::c_uint;
    pub const IBV_QPT_RC: Type = 2;
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_query_device_ex_input {
    pub comp_mask: u32,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: libc::c_int,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_rss_caps {
    pub supported_qpts: u32,
    pub max_rwq_indirection_tables: u32,
    pub max_rwq_indirection_table_size: u32,
    pub rx_hash_fields_mask: u64,
    pub rx_hash_function: u8,
}
#[repr(C)]
pub struct ibv_sa_path_rec {
    pub dgid: ibv_gid,
    pub sgid: ibv_gid,
    pub dlid: __be16,
    pub slid: __be16,
    pub raw_traffic: libc::c_int,
    pub flow_label: __be32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: libc::c_int,
    pub numb_path: u8,
    pub pkey: __be16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct ibv_send_flags(pub libc::c_uint);
impl ibv_send_flags {
    pub const IBV_SEND_SIGNALED: ibv_send_flags = ibv_send_flags(2);
    pub const IBV_SEND_SOLICITED: ibv_send_flags = ibv_send_flags(4);
    pub const IBV_SEND_INLINE: ibv_send_flags = ibv_send_flags(8);
}
#[repr(C)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut Self,
    pub sg_list: *mut ibv_sge,
    pub num_sge: libc::c_int,
    pub opcode: ibv_wr_opcode::Type,
    pub send_flags: libc::c_uint,
    pub imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t,
    pub wr: wr_t,
    pub qp_type: qp_type_t,
    pub bind_mw_tso_union: bind_mw_tso_union_t,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_srq {
    pub context: *mut ibv_context,
    pub srq_context: *mut libc::c_void,
    pub pd: *mut ibv_pd,
    pub handle: u32,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_srq_attr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_srq_init_attr {
    pub srq_context: *mut libc::c_void,
    pub attr: ibv_srq_attr,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_tm_caps {
    pub max_rndv_hdr_size: u32,
    pub max_num_tags: u32,
    pub flags: u32,
    pub max_ops: u32,
    pub max_sge: u32,
}
pub mod ibv_transport_type {
    pub type Type = libc::c_int;
    pub const IBV_TRANSPORT_IWARP: Type = 1;
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_tso_caps {
    pub max_tso: u32,
    pub supported_qpts: u32,
}
#[repr(C)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: ibv_wc_status::Type,
    pub opcode: ibv_wc_opcode::Type,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: libc::c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct ibv_wc_flags(pub libc::c_uint);
impl ibv_wc_flags {
    pub const IBV_WC_WITH_IMM: ibv_wc_flags = ibv_wc_flags(2);
    pub const IBV_WC_IP_CSUM_OK: ibv_wc_flags = ibv_wc_flags(4);
    pub const IBV_WC_WITH_INV: ibv_wc_flags = ibv_wc_flags(8);
}
pub mod ibv_wc_opcode {
    pub type Type = libc::c_uint;
}
pub mod ibv_wc_status {
    pub type Type = libc::c_uint;
}
pub mod ibv_wr_opcode {
    pub type Type = libc::c_uint;
    pub const IBV_WR_RDMA_WRITE: Type = 0;
    pub const IBV_WR_RDMA_WRITE_WITH_IMM: Type = 1;
    pub const IBV_WR_SEND: Type = 2;
    pub const IBV_WR_RDMA_READ: Type = 4;
    pub const IBV_WR_ATOMIC_CMP_AND_SWP: Type = 5;
    pub const IBV_WR_ATOMIC_FETCH_AND_ADD: Type = 6;
    pub const IBV_WR_BIND_MW: Type = 8;
    pub const IBV_WR_SEND_WITH_INV: Type = 9;
}
#[repr(C)]
pub union imm_data_invalidated_rkey_union_t {
    pub imm_data: __be32,
    pub invalidated_rkey: u32,
}
#[repr(C)]
pub union param_t {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
}
#[repr(C)]
pub union qp_type_t {
    pub xrc: xrc_t,
}
#[repr(C)]
pub struct rdma_addr {
    pub src_addr_union: src_addr_union_t,
    pub dst_addr_union: dst_addr_union_t,
    pub addr: addr_union_t,
}
#[repr(C)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: rdma_cm_event_type::Type,
    pub status: libc::c_int,
    pub param: param_t,
}
pub mod rdma_cm_event_type {
    pub type Type = libc::c_uint;
    pub const RDMA_CM_EVENT_CONNECT_REQUEST: Type = 4;
}
#[repr(C)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut libc::c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: rdma_port_space::Type,
    pub port_num: u8,
    pub event: *mut rdma_cm_event,
    pub send_cq_channel: *mut ibv_comp_channel,
    pub send_cq: *mut ibv_cq,
    pub recv_cq_channel: *mut ibv_comp_channel,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub pd: *mut ibv_pd,
    pub qp_type: ibv_qp_type::Type,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_conn_param {
    pub private_data: *const libc::c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_event_channel {
    pub fd: libc::c_int,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_ib_addr {
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
    pub pkey: __be16,
}
pub mod rdma_port_space {
    pub type Type = libc::c_uint;
    pub const RDMA_PS_TCP: Type = 262;
}
#[repr(C)]
pub struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut ibv_sa_path_rec,
    pub num_paths: libc::c_int,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_t {
    pub remote_addr: u64,
    pub rkey: u32,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_ud_param {
    pub private_data: *const libc::c_void,
    pub private_data_len: u8,
    pub ah_attr: ibv_ah_attr,
    pub qp_num: u32,
    pub qkey: u32,
}
#[repr(C)]
pub union src_addr_union_t {
    pub src_addr: libc::sockaddr,
    pub src_sin: libc::sockaddr_in,
    pub src_sin6: libc::sockaddr_in6,
    pub src_storage: libc::sockaddr_storage,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tso_t {
    pub hdr: *mut libc::c_void,
    pub hdr_sz: u16,
    pub mss: u16,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ud_t {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct verbs_context {
    pub query_port: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut ibv_port_attr,
            port_attr_len: usize,
        ) -> libc::c_int,
    >,
    pub advise_mr: Uncalled,
    pub alloc_null_mr: Uncalled,
    pub read_counters: Uncalled,
    pub attach_counters_point_flow: Uncalled,
    pub create_counters: Uncalled,
    pub destroy_counters: Uncalled,
    pub reg_dm_mr: Uncalled,
    pub alloc_dm: Uncalled,
    pub free_dm: Uncalled,
    pub modify_flow_action_esp: Uncalled,
    pub destroy_flow_action: Uncalled,
    pub create_flow_action_esp: Uncalled,
    pub modify_qp_rate_limit: Uncalled,
    pub alloc_parent_domain: Uncalled,
    pub dealloc_td: Uncalled,
    pub alloc_td: Uncalled,
    pub modify_cq: Uncalled,
    pub post_srq_ops: Uncalled,
    pub destroy_rwq_ind_table: Uncalled,
    pub create_rwq_ind_table: Uncalled,
    pub destroy_wq: Uncalled,
    pub modify_wq: Uncalled,
    pub create_wq: Uncalled,
    pub query_rt_values: Uncalled,
    pub create_cq_ex: Uncalled,
    pub priv_: *mut verbs_ex_private,
    pub query_device_ex: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            input: *const ibv_query_device_ex_input,
            attr: *mut ibv_device_attr_ex,
            attr_size: usize,
        ) -> libc::c_int,
    >,
    pub ibv_destroy_flow: Uncalled,
    pub ABI_placeholder2: Uncalled,
    pub ibv_create_flow: Uncalled,
    pub ABI_placeholder1: Uncalled,
    pub open_qp: Uncalled,
    pub create_qp_ex: Uncalled,
    pub get_srq_num: Uncalled,
    pub create_srq_ex: Uncalled,
    pub open_xrcd: Uncalled,
    pub close_xrcd: Uncalled,
    pub _ABI_placeholder3: u64,
    pub sz: usize,
    pub context: ibv_context,
}
#[repr(C)]
pub union wr_t {
    pub rdma: rdma_t,
    pub atomic: atomic_t,
    pub ud: ud_t,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct xrc_t {
    pub remote_srqn: u32,
}
#[repr(C)]
pub struct _compat_ibv_port_attr {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_ah {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_mw_bind {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_wq {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct verbs_ex_private {
    _opaque: [u8; 0],
}

#[cfg(not(feature = "verbs-link"))]
super::load::functions! {
    "libibverbs.so.1" {
        #[version = "IBVERBS_1.1"]
        pub fn ibv_ack_async_event(event: *mut ibv_async_event);
        #[version = "IBVERBS_1.1"]
        pub fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: libc::c_uint);
        #[version = "IBVERBS_1.1"]
        pub fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
        #[version = "IBVERBS_1.0"]
        pub fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
        #[version = "IBVERBS_1.1"]
        pub fn ibv_create_cq(
            context: *mut ibv_context,
            cqe: libc::c_int,
            cq_context: *mut libc::c_void,
            channel: *mut ibv_comp_channel,
            comp_vector: libc::c_int,
        ) -> *mut ibv_cq;
        #[version = "IBVERBS_1.1"]
        pub fn ibv_create_srq(
            pd: *mut ibv_pd,
            srq_init_attr: *mut ibv_srq_init_attr,
        ) -> *mut ibv_srq;
        #[version = "IBVERBS_1.1"]
        pub fn ibv_dealloc_pd(pd: *mut ibv_pd) -> libc::c_int;
        #[version = "IBVERBS_1.1"]
        pub fn ibv_dereg_mr(mr: *mut ibv_mr) -> libc::c_int;
        #[version = "IBVERBS_1.0"]
        pub fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> libc::c_int;
        #[version = "IBVERBS_1.1"]
        pub fn ibv_destroy_cq(cq: *mut ibv_cq) -> libc::c_int;
        #[version = "IBVERBS_1.1"]
        pub fn ibv_destroy_qp(qp: *mut ibv_qp) -> libc::c_int;
        #[version = "IBVERBS_1.1"]
        pub fn ibv_destroy_srq(srq: *mut ibv_srq) -> libc::c_int;
        #[version = "IBVERBS_1.1"]
        pub fn ibv_get_async_event(
            context: *mut ibv_context,
            event: *mut ibv_async_event,
        ) -> libc::c_int;
        #[version = "IBVERBS_1.1"]
        pub fn ibv_get_cq_event(
            channel: *mut ibv_comp_channel,
            cq: *mut *mut ibv_cq,
            cq_context: *mut *mut libc::c_void,
        ) -> libc::c_int;
        #[version = "IBVERBS_1.1"]
        pub fn ibv_get_device_name(device: *mut ibv_device) -> *const libc::c_char;
        #[version = "IBVERBS_1.1"]
        pub fn ibv_modify_qp(
            qp: *mut ibv_qp,
            attr: *mut ibv_qp_attr,
            attr_mask: libc::c_int,
        ) -> libc::c_int;
        #[version = "IBVERBS_1.1"]
        pub fn ibv_query_device(
            context: *mut ibv_context,
            device_attr: *mut ibv_device_attr,
        ) -> libc::c_int;
        #[version = "IBVERBS_1.1"]
        pub fn ibv_query_pkey(
            context: *mut ibv_context,
            port_num: u8,
            index: libc::c_int,
            pkey: *mut __be16,
        ) -> libc::c_int;
        #[version = "IBVERBS_1.1"]
        pub fn ibv_query_port(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut _compat_ibv_port_attr,
        ) -> libc::c_int;
        #[version = "IBVERBS_1.1"]
        pub fn ibv_query_qp(
            qp: *mut ibv_qp,
            attr: *mut ibv_qp_attr,
            attr_mask: libc::c_int,
            init_attr: *mut ibv_qp_init_attr,
        ) -> libc::c_int;
        #[version = "IBVERBS_1.8"]
        pub fn ibv_reg_mr_iova2(
            pd: *mut ibv_pd,
            addr: *mut libc::c_void,
            length: usize,
            iova: u64,
            access: libc::c_uint,
        ) -> *mut ibv_mr;
    }
    "librdmacm.so.1" {
        #[version = "RDMACM_1.0"]
        pub fn rdma_accept(
            id: *mut rdma_cm_id,
            conn_param: *mut rdma_conn_param,
        ) -> libc::c_int;
        #[version = "RDMACM_1.0"]
        pub fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> libc::c_int;
        #[version = "RDMACM_1.0"]
        pub fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> libc::c_int;
        #[version = "RDMACM_1.0"]
        pub fn rdma_connect(
            id: *mut rdma_cm_id,
            conn_param: *mut rdma_conn_param,
        ) -> libc::c_int;
        #[version = "RDMACM_1.0"]
        pub fn rdma_create_event_channel() -> *mut rdma_event_channel;
        #[version = "RDMACM_1.0"]
        pub fn rdma_create_id(
            channel: *mut rdma_event_channel,
            id: *mut *mut rdma_cm_id,
            context: *mut libc::c_void,
            ps: rdma_port_space::Type,
        ) -> libc::c_int;
        #[version = "RDMACM_1.0"]
        pub fn rdma_create_qp(
            id: *mut rdma_cm_id,
            pd: *mut ibv_pd,
            qp_init_attr: *mut ibv_qp_init_attr,
        ) -> libc::c_int;
        #[version = "RDMACM_1.0"]
        pub fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
        #[version = "RDMACM_1.0"]
        pub fn rdma_destroy_id(id: *mut rdma_cm_id) -> libc::c_int;
        #[version = "RDMACM_1.0"]
        pub fn rdma_disconnect(id: *mut rdma_cm_id) -> libc::c_int;
        #[version = "RDMACM_1.0"]
        pub fn rdma_free_devices(list: *mut *mut ibv_context);
        #[version = "RDMACM_1.0"]
        pub fn rdma_get_cm_event(
            channel: *mut rdma_event_channel,
            event: *mut *mut rdma_cm_event,
        ) -> libc::c_int;
        #[version = "RDMACM_1.0"]
        pub fn rdma_get_devices(num_devices: *mut libc::c_int) -> *mut *mut ibv_context;
        #[version = "RDMACM_1.0"]
        pub fn rdma_listen(id: *mut rdma_cm_id, backlog: libc::c_int) -> libc::c_int;
        #[version = "RDMACM_1.0"]
        pub fn rdma_migrate_id(
            id: *mut rdma_cm_id,
            channel: *mut rdma_event_channel,
        ) -> libc::c_int;
        #[version = "RDMACM_1.0"]
        pub fn rdma_reject(
            id: *mut rdma_cm_id,
            private_data: *const libc::c_void,
            private_data_len: u8,
        ) -> libc::c_int;
        #[version = "RDMACM_1.0"]
        pub fn rdma_resolve_addr(
            id: *mut rdma_cm_id,
            src_addr: *mut libc::sockaddr,
            dst_addr: *mut libc::sockaddr,
            timeout_ms: libc::c_int,
        ) -> libc::c_int;
        #[version = "RDMACM_1.0"]
        pub fn rdma_resolve_route(
            id: *mut rdma_cm_id,
            timeout_ms: libc::c_int,
        ) -> libc::c_int;
        #[version = "RDMACM_1.0"]
        pub fn rdma_set_option(
            id: *mut rdma_cm_id,
            level: libc::c_int,
            optname: libc::c_int,
            optval: *mut libc::c_void,
            optlen: usize,
        ) -> libc::c_int;
    }
}

#[cfg(all(test, feature = "verbs-link"))]
super::compare::layouts! {
    type _ibv_device_ops { _dummy1, _dummy2 };
    type addr_union_t { ibaddr };
    type atomic_t { remote_addr, compare_add, swap, rkey };
    type bind_mw_t { mw, rkey, bind_info };
    type bind_mw_tso_union_t { bind_mw, tso };
    type dst_addr_union_t { dst_addr, dst_sin, dst_sin6, dst_storage };
    type ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num };
    type ibv_async_event { element, event_type };
    type ibv_async_event_element_t { cq, qp, srq, wq, port_num };
    type ibv_comp_channel { context, fd, refcnt };
    type ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat };
    type ibv_context_ops { _compat_query_device, _compat_query_port, _compat_alloc_pd,
        _compat_dealloc_pd, _compat_reg_mr, _compat_rereg_mr, _compat_dereg_mr, alloc_mw, bind_mw,
        dealloc_mw, _compat_create_cq, poll_cq, req_notify_cq, _compat_cq_event, _compat_resize_cq,
        _compat_destroy_cq, _compat_create_srq, _compat_modify_srq, _compat_query_srq,
        _compat_destroy_srq, post_srq_recv, _compat_create_qp, _compat_query_qp, _compat_modify_qp,
        _compat_destroy_qp, post_send, post_recv, _compat_create_ah, _compat_destroy_ah,
        _compat_attach_mcast, _compat_detach_mcast, _compat_async_event };
    type ibv_cq { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
        async_events_completed };
    type ibv_cq_moderation_caps { max_cq_count, max_cq_period };
    type ibv_device { _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path };
    type ibv_device_attr { fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id,
        vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq,
        max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom,
        max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw,
        max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach,
        max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr,
        max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt };
    type ibv_device_attr_ex { orig_attr, comp_mask, odp_caps, completion_timestamp_mask,
        hca_core_clock, device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq, packet_pacing_caps,
        raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps, xrc_odp_caps,
        phys_port_cnt_ex };
    type ibv_device_cap_flags {  };
    type ibv_gid { raw, global };
    type ibv_gid_global_t { subnet_prefix, interface_id };
    type ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class };
    type ibv_mr { context, pd, addr, length, handle, lkey, rkey };
    type ibv_mw { context, pd, rkey, handle, type_ };
    type ibv_mw_bind_info { mr, addr, length, mw_access_flags };
    type ibv_odp_caps { general_caps, per_transport_caps };
    type ibv_odp_caps__bindgen_ty_1 { rc_odp_caps, uc_odp_caps, ud_odp_caps };
    type ibv_packet_pacing_caps { qp_rate_limit_min, qp_rate_limit_max, supported_qpts };
    type ibv_pci_atomic_caps { fetch_add, swap, compare_swap };
    type ibv_pd { context, handle };
    type ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz,
        bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl,
        subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer, flags,
        port_cap_flags2 };
    type ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type,
        mutex, cond, events_completed };
    type ibv_qp_attr { qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn,
        dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
        en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
        port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit };
    type ibv_qp_attr_mask {  };
    type ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data };
    type ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all };
    type ibv_query_device_ex_input { comp_mask };
    type ibv_recv_wr { wr_id, next, sg_list, num_sge };
    type ibv_rss_caps { supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size,
        rx_hash_fields_mask, rx_hash_function };
    type ibv_sa_path_rec { dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit,
        traffic_class, reversible, numb_path, pkey, sl, mtu_selector, mtu, rate_selector, rate,
        packet_life_time_selector, packet_life_time, preference };
    type ibv_send_flags {  };
    type ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags,
        imm_data_invalidated_rkey_union, wr, qp_type, bind_mw_tso_union };
    type ibv_sge { addr, length, lkey };
    type ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed };
    type ibv_srq_attr { max_wr, max_sge, srq_limit };
    type ibv_srq_init_attr { srq_context, attr };
    type ibv_tm_caps { max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge };
    type ibv_tso_caps { max_tso, supported_qpts };
    type ibv_wc { wr_id, status, opcode, vendor_err, byte_len, imm_data_invalidated_rkey_union,
        qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits };
    type ibv_wc_flags {  };
    type imm_data_invalidated_rkey_union_t { imm_data, invalidated_rkey };
    type param_t { conn, ud };
    type qp_type_t { xrc };
    type rdma_addr { src_addr_union, dst_addr_union, addr };
    type rdma_cm_event { id, listen_id, event, status, param };
    type rdma_cm_id { verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel,
        send_cq, recv_cq_channel, recv_cq, srq, pd, qp_type };
    type rdma_conn_param { private_data, private_data_len, responder_resources, initiator_depth,
        flow_control, retry_count, rnr_retry_count, srq, qp_num };
    type rdma_event_channel { fd };
    type rdma_ib_addr { sgid, dgid, pkey };
    type rdma_route { addr, path_rec, num_paths };
    type rdma_t { remote_addr, rkey };
    type rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey };
    type src_addr_union_t { src_addr, src_sin, src_sin6, src_storage };
    type tso_t { hdr, hdr_sz, mss };
    type ud_t { ah, remote_qpn, remote_qkey };
    type verbs_context { query_port, advise_mr, alloc_null_mr, read_counters,
        attach_counters_point_flow, create_counters, destroy_counters, reg_dm_mr, alloc_dm, free_dm,
        modify_flow_action_esp, destroy_flow_action, create_flow_action_esp, modify_qp_rate_limit,
        alloc_parent_domain, dealloc_td, alloc_td, modify_cq, post_srq_ops, destroy_rwq_ind_table,
        create_rwq_ind_table, destroy_wq, modify_wq, create_wq, query_rt_values, create_cq_ex,
        priv_, query_device_ex, ibv_destroy_flow, ABI_placeholder2, ibv_create_flow,
        ABI_placeholder1, open_qp, create_qp_ex, get_srq_num, create_srq_ex, open_xrcd, close_xrcd,
        _ABI_placeholder3, sz, context };
    type wr_t { rdma, atomic, ud };
    type xrc_t { remote_srqn };
    const ibv_atomic_cap::IBV_ATOMIC_GLOB;
    const ibv_atomic_cap::IBV_ATOMIC_HCA;
    const ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A;
    const ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    const ibv_mw_type::IBV_MW_TYPE_2;
    const ibv_qp_attr_mask::IBV_QP_AV;
    const ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
    const ibv_qp_attr_mask::IBV_QP_PATH_MTU;
    const ibv_qp_attr_mask::IBV_QP_PKEY_INDEX;
    const ibv_qp_attr_mask::IBV_QP_RETRY_CNT;
    const ibv_qp_attr_mask::IBV_QP_RNR_RETRY;
    const ibv_qp_attr_mask::IBV_QP_STATE;
    const ibv_qp_attr_mask::IBV_QP_TIMEOUT;
    const ibv_qp_state::IBV_QPS_ERR;
    const ibv_qp_type::IBV_QPT_RC;
    const ibv_send_flags::IBV_SEND_INLINE;
    const ibv_send_flags::IBV_SEND_SIGNALED;
    const ibv_send_flags::IBV_SEND_SOLICITED;
    const ibv_transport_type::IBV_TRANSPORT_IWARP;
    const ibv_wc_flags::IBV_WC_IP_CSUM_OK;
    const ibv_wc_flags::IBV_WC_WITH_IMM;
    const ibv_wc_flags::IBV_WC_WITH_INV;
    const ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
    const ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
    const ibv_wr_opcode::IBV_WR_BIND_MW;
    const ibv_wr_opcode::IBV_WR_RDMA_READ;
    const ibv_wr_opcode::IBV_WR_RDMA_WRITE;
    const ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
    const ibv_wr_opcode::IBV_WR_SEND;
    const ibv_wr_opcode::IBV_WR_SEND_WITH_INV;
    const rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST;
    const rdma_port_space::RDMA_PS_TCP;
}
