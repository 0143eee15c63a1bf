use super::*;

#[test]
fn segments_stay_inside_their_region() {
    let region = Region::from_vec(vec![0; 16]);
    assert!(region.segment(0, 16).is_ok());
    assert!(region.segment(16, 0).is_ok());
    assert!(region.segment(1, 16).is_err());
    assert!(region.segment(usize::MAX, 2).is_err());
    let seg = region.segment(4, 8).unwrap();
    assert!(seg.slice(8, 1).is_err());
    assert!(seg.slice(usize::MAX, 2).is_err());
    assert_eq!(seg.slice(2, 3).unwrap().offset(), 6);
}

#[test]
fn bytes_go_in_and_come_out() {
    let region = Region::from_vec((0..16).collect());
    let seg = region.segment(4, 8).unwrap();
    let mut out = [0; 3];
    seg.read_at(1, &mut out);
    assert_eq!(out, [5, 6, 7]);
    seg.write_at(0, &[9, 9]);
    seg.copy_to(0, &seg, 1, 4);
    drop(seg);
    assert_eq!(region.into_vec().unwrap()[4..10], [9, 9, 9, 6, 7, 9]);
}

#[test]
#[should_panic(expected = "8 bytes at 1 of a segment of 8")]
fn writing_past_the_end_panics() {
    Region::from_vec(vec![0; 16]).segment(0, 8).unwrap().write_at(1, &[0; 8]);
}

#[test]
fn crc_matches_the_check_value() {
    let seg = Region::from_vec(b"123456789".to_vec()).segment(0, 9).unwrap();
    assert_eq!(seg.crc32c(0, 0, 9), 0xE306_9283);
    assert_eq!(seg.crc32c(seg.crc32c(0, 0, 4), 4, 5), 0xE306_9283);
}

#[test]
fn a_vector_comes_back_only_when_nothing_refers_to_it() {
    let region = Region::from_vec(Vec::with_capacity(100));
    let seg = region.segment(0, 0).unwrap();
    let region = region.into_vec().unwrap_err();
    drop(seg);
    assert_eq!(region.into_vec().unwrap().capacity(), 100);
}
