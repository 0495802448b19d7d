{#- Written by `lakehouse scaffold`, its own while unchanged: 938a669e7ae8cad2 -#}
{{ cdc_vault.stage(
  source_model='parsed_retail__stores',
  hashed_columns={
    'hk_store': ['store_id'],
    'hd_store_details': {'is_hashdiff': true, 'columns': ['store_name', 'city', 'state', 'opened_at']},
    'hd_status': {'is_hashdiff': true, 'columns': []},
  },
) }}
