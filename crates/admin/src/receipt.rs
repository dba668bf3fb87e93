//! Receipts as text: with one, a consumer settles a delivery.

use mainstem_queue_core::Receipt;

/// Parses `OFFSET-COUNT-INCARNATION`, the format of [`show_receipt`].
pub(crate) fn parse_receipt(text: &str) -> Option<Receipt> {
    let (offset, rest) = text.split_once('-')?;
    let (count, incarnation) = rest.split_once('-')?;
    let incarnation = u32::from_str_radix(incarnation, 16).ok()?;
    Some(Receipt { offset: offset.parse().ok()?, count: count.parse().ok()?, incarnation })
}

/// Formats a receipt, with which the consumer settles the delivery.
pub(crate) fn show_receipt(receipt: Receipt) -> String {
    let Receipt { offset, count, incarnation } = receipt;
    format!("{offset}-{count}-{incarnation:08x}")
}
