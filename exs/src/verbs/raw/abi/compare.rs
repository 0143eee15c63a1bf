//! Compares the checked-in declarations with those of rdma-sys.

/// Makes a test of each layout and each constant.
macro_rules! layouts {
    ($(type $ty:ident { $($field:ident),* };)* $(const $enumeration:ident::$constant:ident;)*) => {
        mod layout_of {
            $(
                #[test]
                fn $ty() {
                    use super::$ty as Ours;
                    use rdma_sys::$ty as Theirs;
                    assert_eq!(size_of::<Ours>(), size_of::<Theirs>(), "the size");
                    assert_eq!(align_of::<Ours>(), align_of::<Theirs>(), "the alignment");
                    $(
                        assert_eq!(
                            std::mem::offset_of!(Ours, $field),
                            std::mem::offset_of!(Theirs, $field),
                            stringify!($field)
                        );
                    )*
                }
            )*
        }

        #[test]
        fn constants() {
            $(
                assert_eq!(
                    super::compare::number(&super::bindings::$enumeration::$constant),
                    super::compare::number(&rdma_sys::$enumeration::$constant),
                    stringify!($enumeration::$constant)
                );
            )*
        }
    };
}
pub(super) use layouts;

/// The bits of a constant, whose type is an integer or a structure of one.
pub(super) fn number<T: Copy>(constant: &T) -> u32 {
    assert_eq!(size_of::<T>(), size_of::<u32>(), "enumerations of C are 32 bits wide");
    // SAFETY: an integer of 32 bits, or a structure of one.
    unsafe { std::mem::transmute_copy(constant) }
}
