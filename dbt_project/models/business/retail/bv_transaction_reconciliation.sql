with headers as (
  select hk_transaction, total_amount
  from {{ ref('sat_transaction_details_v1') }}
  where is_current and not is_deleted
),
lines as (
  select link.hk_transaction, count(*) as line_count, sum(details.line_total) as line_total
  from {{ ref('sat_transaction_item_details_v1') }} as details
  join {{ ref('link_transaction_item_transaction') }} as link on link.hk_transaction_item = details.hk_transaction_item
  join {{ ref('eff_sat_transaction_item_transaction_v1') }} as effectivity
    on effectivity.hk_transaction_item_transaction = link.hk_transaction_item_transaction
  where details.is_current and not details.is_deleted and effectivity.is_current and effectivity.is_active
  group by link.hk_transaction
)
select
  hub.hk_transaction,
  hub.txn_id,
  headers.total_amount,
  coalesce(lines.line_count, 0) as line_count,
  coalesce(lines.line_total, 0) as line_total,
  headers.total_amount - coalesce(lines.line_total, 0) as difference,
  headers.total_amount = coalesce(lines.line_total, 0) as is_reconciled
from {{ ref('hub_transaction') }} as hub
join headers on headers.hk_transaction = hub.hk_transaction
left join lines on lines.hk_transaction = hub.hk_transaction
