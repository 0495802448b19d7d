with items as (
  select hk_transaction, count(*) as line_count, sum(quantity) as units
  from {{ ref('fct_transaction_items') }}
  group by hk_transaction
)
select
  sale.store_id,
  store.store_name,
  cast(sale.txn_timestamp as date) as sales_day,
  count(*) as transactions,
  count(sale.customer_id) as transactions_with_card,
  coalesce(sum(items.line_count), 0) as line_count,
  coalesce(sum(items.units), 0) as units,
  sum(sale.total_amount) as revenue
from {{ ref('fct_transactions') }} as sale
left join {{ ref('dim_store') }} as store on store.hk_store = sale.hk_store
left join items on items.hk_transaction = sale.hk_transaction
group by sale.store_id, store.store_name, cast(sale.txn_timestamp as date)
