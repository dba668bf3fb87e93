//! Date and time in UTC, for output formats.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A point in time as date and time in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Seconds since 1970.
    pub(crate) unix_s: u64,
    pub(crate) nanos: u32,
    pub(crate) year: u64,
    /// 1 to 12.
    pub(crate) month: u64,
    /// 1 to 31.
    pub(crate) day: u64,
    /// 1 to 366.
    pub(crate) day_of_year: u64,
    pub(crate) hour: u64,
    pub(crate) minute: u64,
    pub(crate) second: u64,
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self::at(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    /// The time `since` after the Unix epoch.
    pub(crate) fn at(since: Duration) -> Self {
        let unix_s = since.as_secs();
        let mut days = unix_s / 86_400;
        let mut year = 1970;
        while days >= year_days(year) {
            days -= year_days(year);
            year += 1;
        }
        let day_of_year = days + 1;
        let mut month = 1;
        while days >= month_days(year, month) {
            days -= month_days(year, month);
            month += 1;
        }
        Self {
            unix_s,
            nanos: since.subsec_nanos(),
            year,
            month,
            day: days + 1,
            day_of_year,
            hour: unix_s / 3_600 % 24,
            minute: unix_s / 60 % 60,
            second: unix_s % 60,
        }
    }

    /// `2016-08-10`.
    pub(crate) fn date(&self) -> String {
        format!("{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }

    /// `09:47:38`.
    pub(crate) fn time(&self) -> String {
        format!("{:02}:{:02}:{:02}", self.hour, self.minute, self.second)
    }

    /// `2016-08-10T09:47:38Z` (ISO 8601).
    pub(crate) fn iso(&self) -> String {
        format!("{}T{}Z", self.date(), self.time())
    }

    /// `2016-08-10T09:47:38.386368Z` (ISO 8601).
    pub(crate) fn iso_micros(&self) -> String {
        format!("{}T{}.{:06}Z", self.date(), self.time(), self.nanos / 1_000)
    }
}

fn year_days(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn month_days(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_known_times() {
        let iso = |s| Moment::at(Duration::from_secs(s)).iso();
        assert_eq!(iso(0), "1970-01-01T00:00:00Z");
        assert_eq!(iso(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(iso(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(iso(1_470_818_858), "2016-08-10T08:47:38Z");
        assert_eq!(iso(4_107_542_400), "2100-03-01T00:00:00Z");
        let last = Moment::at(Duration::new(1_735_689_599, 987_654_321));
        assert_eq!((last.iso_micros().as_str(), last.day_of_year), ("2024-12-31T23:59:59.987654Z", 366));
    }
}
