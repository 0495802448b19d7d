{{ cdc_vault.bridge(
  source_model='hub_transaction_item',
  src_pk='hk_transaction_item',
  walk=[
    {'link': 'link_transaction_item_product', 'effectivity': 'eff_sat_transaction_item_product_v1',
     'src_pk': 'hk_transaction_item_product', 'from': 'hk_transaction_item', 'to': ['hk_product']},
    {'link': 'link_transaction_item_transaction', 'effectivity': 'eff_sat_transaction_item_transaction_v1',
     'src_pk': 'hk_transaction_item_transaction', 'from': 'hk_transaction_item', 'to': ['hk_transaction']},
    {'link': 'link_transaction_store_customer', 'effectivity': 'eff_sat_transaction_store_customer_v1',
     'src_pk': 'hk_transaction_store_customer', 'from': 'hk_transaction', 'to': ['hk_store', 'hk_customer']},
  ],
) }}
