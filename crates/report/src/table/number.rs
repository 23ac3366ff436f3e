//! How a figure reads.

/// `value` with `digits` significant digits, whole numbers whole: `0.1612`, `84568`, `3.2`.
pub fn significant(value: f64, digits: i32) -> String {
    if !value.is_finite() {
        return plain(value);
    }
    if value == value.trunc() && value.abs() < 1e15 {
        return format!("{value:.0}");
    }
    let magnitude = value.abs().log10().floor() as i32;
    if !(-5..15).contains(&magnitude) {
        return format!("{value:.*e}", digits.max(1) as usize - 1);
    }
    format!("{value:.*}", (digits - 1 - magnitude).clamp(0, 12) as usize)
}

/// A percentage with as many digits as it deserves: `0.3 %`, `12 %`.
pub(super) fn percent(value: f64) -> String {
    if value.abs() < 9.95 { format!("{value:.1} %") } else { format!("{value:.0} %") }
}

/// The number for a program: shortest text that reads back as the same number.
pub(super) fn plain(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "inf" } else { "-inf" }.to_owned()
    } else {
        value.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_four_digits_and_whole_numbers_whole() {
        let cases = [
            (0.0, "0"),
            (0.16123, "0.1612"),
            (3.2, "3.200"),
            (84568.0, "84568"),
            (13249.5, "13250"),
            (13_091_697.0, "13091697"),
            (0.000_012_34, "0.00001234"),
            (1.234e-7, "1.234e-7"),
            (1.5e15, "1.500e15"),
            (-0.5, "-0.5000"),
            (f64::NAN, "NaN"),
        ];
        for (value, expected) in cases {
            assert_eq!(significant(value, 4), expected, "{value}");
        }
    }

    #[test]
    fn percentages_have_a_decimal_where_it_matters() {
        assert_eq!(percent(0.34), "0.3 %");
        assert_eq!(percent(12.3), "12 %");
    }
}
