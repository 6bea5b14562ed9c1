//! Numbers as people read them. Pure.

/// With a comma between groups of three digits: `1,234,567`.
pub fn grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3 + 1);
    if number < 0 {
        text.push('-');
    }
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// So many of something: `1 event`, `2,000 events`.
pub fn counted(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", grouped(number as i64))
}

/// Bytes in the largest unit that leaves at least one: `12.3 MiB`.
pub fn bytes(number: i64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = number as f64;
    let mut unit = "B";
    for larger in units {
        if value.abs() < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if unit == "B" { format!("{number} B") } else { format!("{value:.1} {unit}") }
}

/// Something done `count` times in `seconds`: `181,000/s`, rounded to three digits.
pub fn rate(count: u64, seconds: f64) -> String {
    let rate = count as f64 / seconds.max(1e-6);
    let step = 10f64.powi((rate.max(1.0).log10().floor() as i32 - 2).max(0));
    format!("{}/s", grouped(((rate / step).round() * step) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (-1_234_567, "-1,234,567"),
            (i64::MIN, "-9,223,372,036,854,775,808"),
        ];
        for (number, text) in cases {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn one_is_no_plural() {
        let cases = [(0, "0 events"), (1, "1 event"), (2_000, "2,000 events")];
        for (number, text) in cases {
            assert_eq!(counted(number, "event"), text);
        }
    }

    #[test]
    fn bytes_have_a_unit() {
        let cases = [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (4 << 30, "4.0 GiB")];
        for (number, text) in cases {
            assert_eq!(bytes(number), text);
        }
    }

    #[test]
    fn rates_claim_three_digits() {
        let cases = [(7, 1.0, "7/s"), (181_234, 1.0, "181,000/s"), (0, 0.0, "0/s")];
        for (count, seconds, text) in cases {
            assert_eq!(rate(count, seconds), text);
        }
    }
}
