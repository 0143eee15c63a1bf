//! Percentiles and medians of what was measured.

use std::time::Duration;

/// Samples of one measurement.
///
/// All of them are kept and sorted: a histogram would be smaller, but it rounds, and a
/// run has thousands of samples, not billions.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    nanos: Vec<u64>,
}

impl Samples {
    /// Room for `n` samples, so that recording one allocates nothing.
    pub fn with_capacity(n: usize) -> Samples {
        Samples { nanos: Vec::with_capacity(n) }
    }

    /// Records one.
    pub fn record(&mut self, sample: Duration) {
        self.nanos.push(u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.nanos.len()
    }

    /// True if nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.nanos.is_empty()
    }

    /// Sorts them, for [`Sorted::percentile`].
    pub fn sort(mut self) -> Sorted {
        self.nanos.sort_unstable();
        Sorted { nanos: self.nanos }
    }
}

/// Samples in order.
#[derive(Clone, Debug)]
pub struct Sorted {
    nanos: Vec<u64>,
}

impl Sorted {
    /// The smallest sample that `permille` of 1000 samples do not exceed (nearest
    /// rank), in microseconds. 0 if there are none.
    pub fn percentile(&self, permille: usize) -> f64 {
        let rank = (self.nanos.len() * permille).div_ceil(1000).max(1);
        self.nanos.get(rank - 1).map_or(0.0, |&n| n as f64 / 1000.0)
    }

    /// The mean, in microseconds.
    pub fn mean(&self) -> f64 {
        let sum: u128 = self.nanos.iter().map(|&n| u128::from(n)).sum();
        sum as f64 / self.nanos.len().max(1) as f64 / 1000.0
    }
}

/// The median of a few figures; the mean of the middle two if their number is even.
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    match n {
        0 => 0.0,
        _ if n % 2 == 1 => sorted[n / 2],
        _ => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let mut s = Samples::default();
        for us in (1..=1000).rev() {
            s.record(Duration::from_micros(us));
        }
        let s = s.sort();
        assert_eq!(s.percentile(500), 500.0);
        assert_eq!(s.percentile(990), 990.0);
        assert_eq!(s.percentile(999), 999.0);
        assert_eq!(s.percentile(0), 1.0);
        assert_eq!(s.percentile(1000), 1000.0);
        assert_eq!(s.mean(), 500.5);
        assert_eq!(Samples::default().sort().percentile(500), 0.0);
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
