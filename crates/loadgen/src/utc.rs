//! Formatted times, in UTC.

/// Date and time to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Utc {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

/// `2020-11-04 10:18:38.169 UTC`, for milliseconds since 1970-01-01 UTC.
pub(crate) fn date_time(unix_ms: u64) -> String {
    format!("{}.{:03} UTC", to_the_second(unix_ms), unix_ms % 1000)
}

/// `2020-11-04 10:18:38`
pub(crate) fn to_the_second(unix_ms: u64) -> String {
    let Utc { year, month, day, hour, minute, second } = of(unix_ms);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// `20201104-101838`, for file names.
pub(crate) fn file_name_part(unix_ms: u64) -> String {
    let Utc { year, month, day, hour, minute, second } = of(unix_ms);
    format!("{year}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

fn of(unix_ms: u64) -> Utc {
    let seconds = unix_ms / 1000;
    let (days, second_of_day) = (seconds / 86_400, seconds % 86_400);
    // Years that begin on 1 March have their leap day at the end; 400 of them always have the same length. Day 0 is 1
    // March of the year 0.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Month lengths from March on repeat the pattern 31, 30, 31, 30, 31.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    Utc {
        year: era * 400 + year_of_era + u64::from(month <= 2),
        month,
        day: day_of_year - (153 * month_from_march + 2) / 5 + 1,
        hour: second_of_day / 3600,
        minute: second_of_day / 60 % 60,
        second: second_of_day % 60,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // As `date -u -d @SECONDS` shows them.
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00.169 UTC"),
            (951_782_399, "2000-02-28 23:59:59.169 UTC"),
            (951_782_400, "2000-02-29 00:00:00.169 UTC"),
            (951_868_799, "2000-02-29 23:59:59.169 UTC"),
            (951_868_800, "2000-03-01 00:00:00.169 UTC"),
            (1_604_485_118, "2020-11-04 10:18:38.169 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59.169 UTC"),
            (1_735_689_600, "2025-01-01 00:00:00.169 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00.169 UTC"),
        ] {
            assert_eq!(date_time(seconds * 1000 + 169), expected);
        }
        assert_eq!(file_name_part(1_604_485_118_169), "20201104-101838");
    }
}
