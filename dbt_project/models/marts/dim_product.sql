with details as (
  select * from {{ ref('sat_product_details_v1') }} where is_current and not is_deleted
),
price as (
  select * from {{ ref('sat_product_price_v1') }} where is_current and not is_deleted
)
select
  hub.hk_product,
  hub.product_id,
  details.product_name,
  details.category,
  price.unit_price,
  details.created_at,
  greatest(details.valid_from, price.valid_from) as valid_from
from {{ ref('hub_product') }} as hub
join details on details.hk_product = hub.hk_product
join price on price.hk_product = hub.hk_product
