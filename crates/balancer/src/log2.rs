//! Logarithms to the base 2 in fixed point: a few instructions, and the same result on every machine.

/// Returns log2 of `value` in steps of 1/65536, with an error below 0.009; 0 for a `value` of 0.
///
/// Between two powers of 2 it approximates the logarithm by a parabola.
pub(crate) fn log2_q16(value: u64) -> u64 {
    let Some(exponent) = value.checked_ilog2() else { return 0 };
    let fraction = value << (63 - exponent) << 1 >> 48;
    u64::from(exponent) << 16 | (fraction + bulge(fraction)).min(0xFFFF)
}

/// Returns 2 to the power of `log2` in steps of 1/65536, below 2^48, with an error below 1 %.
pub(crate) fn exp2_q16(log2: u64) -> u64 {
    let (exponent, fraction) = (log2 >> 16, log2 & 0xFFFF);
    let mantissa = 1 << 16 | fraction.saturating_sub(bulge(fraction));
    mantissa << exponent.min(47) >> 16
}

/// Approximates log2(1 + x) − x by 0.343 · x · (1 − x).
fn bulge(fraction: u64) -> u64 {
    (((fraction * (0x1_0000 - fraction)) >> 16) * 22_479) >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_accurate() {
        assert_eq!((log2_q16(0), log2_q16(1), log2_q16(2), log2_q16(1 << 40)), (0, 0, 1 << 16, 40 << 16));
        let mut value = 1_u64;
        while value < 1 << 46 {
            let (log2, truth) = (log2_q16(value) as f64 / 65_536.0, (value as f64).log2());
            assert!((log2 - truth).abs() < 0.009, "log2({value}) = {log2}, in truth {truth}");
            value += value / 7 + 1;
        }
        assert!(log2_q16(u64::MAX) < 64 << 16);
    }

    #[test]
    fn exp2_inverts_log2() {
        for value in [1, 2, 1_000, 25_000_000, 37_123_456, 3_600_000_000_000] {
            let back = exp2_q16(log2_q16(value));
            assert!(back.abs_diff(value) <= value / 100, "{value} became {back}");
        }
        assert_eq!(exp2_q16(0), 1);
        assert!(exp2_q16(u64::MAX) < 1 << 48);
    }
}
