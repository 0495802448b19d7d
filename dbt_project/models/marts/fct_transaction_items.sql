with details as (
  select * from {{ ref('sat_transaction_item_details_v1') }} where is_current and not is_deleted
),
sold as (
  select link.hk_transaction_item, link.hk_product
  from {{ ref('link_transaction_item_product') }} as link
  join {{ ref('eff_sat_transaction_item_product_v1') }} as effectivity
    on effectivity.hk_transaction_item_product = link.hk_transaction_item_product
  where effectivity.is_current and effectivity.is_active
),
belongs as (
  select link.hk_transaction_item, link.hk_transaction
  from {{ ref('link_transaction_item_transaction') }} as link
  join {{ ref('eff_sat_transaction_item_transaction_v1') }} as effectivity
    on effectivity.hk_transaction_item_transaction = link.hk_transaction_item_transaction
  where effectivity.is_current and effectivity.is_active
)
select
  hub.hk_transaction_item,
  belongs.hk_transaction,
  sold.hk_product,
  hub.item_id,
  sale.txn_id,
  product.product_id,
  details.quantity,
  details.unit_price,
  details.line_total
from {{ ref('hub_transaction_item') }} as hub
join details on details.hk_transaction_item = hub.hk_transaction_item
join belongs on belongs.hk_transaction_item = hub.hk_transaction_item
join sold on sold.hk_transaction_item = hub.hk_transaction_item
left join {{ ref('hub_transaction') }} as sale on sale.hk_transaction = belongs.hk_transaction
left join {{ ref('hub_product') }} as product on product.hk_product = sold.hk_product
